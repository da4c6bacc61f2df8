/* A module that calls limiters from everywhere a module may call from: from its callback for keyspace events, from a
 * timer, and from a thread of its own. Without the server's header, as a module is free to be. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct Context Context;
typedef struct String String;
typedef struct Reply Reply;
typedef int Command(Context *, String **, int);

static int (*get_api)(const char *, void *);
static Reply *(*call)(Context *, const char *, const char *, ...);
static void (*free_call_reply)(Reply *);
static int (*reply_with_long_long)(Context *, long long);
static int (*reply_with_array)(Context *, long);
static Context *(*get_thread_safe_context)(void *);
static void (*free_thread_safe_context)(Context *);
static void (*lock)(Context *);
static void (*unlock)(Context *);
static uint64_t (*create_timer)(Context *, long long, void (*)(Context *, void *), void *);
static int (*subscribe_to_keyspace_events)(Context *, int, int (*)(Context *, int, const char *, String *));

enum { EVENT, TIMER, THREAD, SOURCES };
enum { GENERIC = 1 << 2, STRING = 1 << 3, HASH = 1 << 6, ZSET = 1 << 7, EXPIRED = 1 << 8, EVICTED = 1 << 9 };

static const char *const calls[][2] = {
    {"CL.PEEK", "0 1 20 1 MS"},        {"CL.THROTTLE", "0 1 20 1 MS"}, {"CL.RESERVE", "0 1 20 1 MS"},
    {"CL.REFUND", "0 1 20 1 MS"},      {"CL.CHARGE", "0 1 20 1 MS"},   {"CL.BTHROTTLE", "0 1 20 1 1 MS"},
    {"CL.BTHROTTLE", "9 1 20 1 1 MS"}, {"DEL", ""},                    {"PEXPIRE", "1"},
    {"CL.FUNNEL", "5 1 20 1 MS"},      {"CL.ACQUIRE", "5 20 id MS"},   {"CL.RELEASE", "id"},
    {"CL.LOG", "5 20 1 MS"},           {"CL.FIXED", "5 20 1 MS"},      {"CL.WINDOW", "5 20 1 MS"},
};
enum { READS = 1, ALL = sizeof calls / sizeof *calls };
static long long made[SOURCES];
static volatile int running;

/* Calls one of the first `kinds` on one of four keys, some of which have queues. */
static void call_one(Context *context, int source, size_t kinds) {
    static uint32_t random = 2463534242;
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    const char *const *one = calls[random / 4 % kinds];
    char key[3] = {'k', (char)('0' + random % 4), 0}, words[6][8];
    int count = sscanf(one[1], "%7s %7s %7s %7s %7s %7s", words[0], words[1], words[2], words[3], words[4], words[5]);
    char format[9] = "!cccccc";
    format[2 + (count > 0 ? count : 0)] = 0;
    Reply *reply = call(context, one[0], format, key, words[0], words[1], words[2], words[3], words[4], words[5]);
    if (reply) free_call_reply(reply);
    made[source]++;
}

static int on_event(Context *context, int type, const char *event, String *key) {
    /* In these two, who writes ends any server: the command that notified goes on with what it knew of the key. */
    int reads = type == EXPIRED || !strcmp(event, "zremrangebyrank");
    (void)key;
    if (running) call_one(context, EVENT, reads ? READS : ALL);
    return 0;
}

static void on_timer(Context *context, void *data) {
    call_one(context, TIMER, ALL);
    if (running) create_timer(context, 3, on_timer, data);
}

static void *thread(void *data) {
    Context *context = get_thread_safe_context(NULL);
    while (running) {
        lock(context);
        call_one(context, THREAD, ALL);
        unlock(context);
        usleep(3000);
    }
    free_thread_safe_context(context);
    return data;
}

static int start(Context *context, String **words, int count) {
    (void)words, (void)count;
    pthread_t id;
    running = 1;
    create_timer(context, 1, on_timer, NULL);
    pthread_create(&id, NULL, thread, NULL);
    pthread_detach(id);
    return reply_with_long_long(context, 1);
}

static int stop(Context *context, String **words, int count) {
    (void)words, (void)count;
    running = 0;
    reply_with_array(context, SOURCES);
    for (int source = 0; source < SOURCES; source++) reply_with_long_long(context, made[source]);
    return 0;
}

/* Refuses one key ten times, from a thread of its own. */
static void *refuse(void *data) {
    Context *context = get_thread_safe_context(NULL);
    for (int times = 0; times < 10; times++) {
        lock(context);
        Reply *reply = call(context, "CL.THROTTLE", "cccccc", "refused", "0", "1", "3600", "2", "S");
        if (reply) free_call_reply(reply);
        unlock(context);
    }
    free_thread_safe_context(context);
    return data;
}

static int start_refusing(Context *context, String **words, int count) {
    (void)words, (void)count;
    pthread_t id;
    pthread_create(&id, NULL, refuse, NULL);
    pthread_detach(id);
    return reply_with_long_long(context, 1);
}

int RedisModule_OnLoad(Context *context, String **arguments, int count) {
    (void)arguments, (void)count;
    void (*set_attributes)(Context *, const char *, int, int);
    int (*create_command)(Context *, const char *, Command *, const char *, int, int, int);
    get_api = *(int (**)(const char *, void *))context; /* the first thing in it */
    if (get_api("RedisModule_SetModuleAttribs", &set_attributes) ||
        get_api("RedisModule_CreateCommand", &create_command) || get_api("RedisModule_Call", &call) ||
        get_api("RedisModule_FreeCallReply", &free_call_reply) ||
        get_api("RedisModule_ReplyWithLongLong", &reply_with_long_long) ||
        get_api("RedisModule_ReplyWithArray", &reply_with_array) ||
        get_api("RedisModule_GetThreadSafeContext", &get_thread_safe_context) ||
        get_api("RedisModule_FreeThreadSafeContext", &free_thread_safe_context) ||
        get_api("RedisModule_ThreadSafeContextLock", &lock) ||
        get_api("RedisModule_ThreadSafeContextUnlock", &unlock) ||
        get_api("RedisModule_CreateTimer", &create_timer) ||
        get_api("RedisModule_SubscribeToKeyspaceEvents", &subscribe_to_keyspace_events))
        return 1;
    set_attributes(context, "nested", 1, 1);
    return create_command(context, "nested.start", start, "", 0, 0, 0) ||
           create_command(context, "nested.stop", stop, "", 0, 0, 0) ||
           create_command(context, "nested.refuse", start_refusing, "", 0, 0, 0) ||
           subscribe_to_keyspace_events(context, GENERIC | STRING | HASH | ZSET | EXPIRED | EVICTED, on_event);
}
