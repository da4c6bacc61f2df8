/* A module that registers the command CL.THROTTLE, under the name in its argument. It stands for brandur/redis-cell or
 * any other module with that command. It does not use the server's header, which a module does not need. */
#include <stddef.h>

typedef struct Context Context;
typedef struct String String;
typedef int Command(Context *, String **, int);

static int (*get_api)(const char *, void *);
static int (*reply_with_simple_string)(Context *, const char *);

static int throttle(Context *context, String **words, int count) {
    (void)words, (void)count;
    return reply_with_simple_string(context, "another module");
}

int RedisModule_OnLoad(Context *context, String **arguments, int count) {
    void (*set_attributes)(Context *, const char *, int, int);
    int (*create_command)(Context *, const char *, Command *, const char *, int, int, int);
    const char *(*string)(const String *, size_t *);
    get_api = *(int (**)(const char *, void *))context; /* the first thing in it */
    if (get_api("RedisModule_SetModuleAttribs", &set_attributes) || get_api("RedisModule_StringPtrLen", &string) ||
        get_api("RedisModule_CreateCommand", &create_command) ||
        get_api("RedisModule_ReplyWithSimpleString", &reply_with_simple_string) || count != 1)
        return 1;
    set_attributes(context, string(arguments[0], NULL), 1, 1);
    return create_command(context, "cl.throttle", throttle, "readonly", 0, 0, 0);
}
