/* A module that calls limiters from everywhere a module may call from: from its callback for keyspace events, from a
 * timer, and from a thread of its own; and one that runs given commands at given events. Without the server's header,
 * as a module is free to be. */
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
static const char *(*string_ptr_len)(const String *, size_t *);
static String *(*create_string)(Context *, const char *, size_t);
static void (*free_string)(Context *, String *);
static Context *(*get_thread_safe_context)(void *);
static void (*free_thread_safe_context)(Context *);
static void (*lock)(Context *);
static void (*unlock)(Context *);
static uint64_t (*create_timer)(Context *, long long, void (*)(Context *, void *), void *);
static int (*subscribe_to_keyspace_events)(Context *, int, int (*)(Context *, int, const char *, String *));

enum { EVENT, TIMER, THREAD, SOURCES };
enum { GENERIC = 1 << 2, STRING = 1 << 3, HASH = 1 << 6, ZSET = 1 << 7, EXPIRED = 1 << 8, EVICTED = 1 << 9 };
enum { NEW = 1 << 14, OVERWRITTEN = 1 << 15, TYPE_CHANGED = 1 << 16 };

/* What is run at the event of this name of this key, "*" standing for all. */
enum { ORDERS = 16, WORDS = 24 };
static struct Order {
    char event[32], key[32], words[WORDS][32];
    int count;
} orders[ORDERS];
static int ordered;
static long long obeyed;

/* Whether one of the server's own commands runs. */
static int plain;

static const char *const calls[][2] = {
    {"CL.PEEK", "0 1 20 1 MS"},        {"CL.THROTTLE", "0 1 20 1 MS"}, {"CL.RESERVE", "0 1 20 1 MS"},
    {"CL.REFUND", "0 1 20 1 MS"},      {"CL.CHARGE", "0 1 20 1 MS"},   {"CL.BTHROTTLE", "0 1 20 1 1 MS"},
    {"CL.BTHROTTLE", "9 1 20 1 1 MS"}, {"DEL", ""},                    {"PEXPIRE", "1"},
    {"CL.FUNNEL", "5 1 20 1 MS"},      {"CL.ACQUIRE", "5 20 id MS"},   {"CL.RELEASE", "id"},
    {"CL.LOG", "5 20 1 MS"},           {"CL.FIXED", "5 20 1 MS"},      {"CL.WINDOW", "5 20 1 MS"},
    {"SET", "foreign"},                {"FLUSHALL", 0},
};

/* Calls of many keys, on all four of them in some order: those of one kind, and mixed ones. */
static const char *const many[] = {
    "CL.MTAKE %s THROTTLE 5 1 20 1 %s THROTTLE 5 1 20 1 %s THROTTLE 5 1 20 1 MS",
    "CL.MTAKE %s THROTTLE 5 1 20 1 %s FUNNEL 5 1 20 1 %s BUCKET 5 1 20 1 %s FIXED 5 20 1 MS",
    "CL.MTAKE %s LOG 5 20 1 %s LEASE 5 20 id %s WINDOW 5 20 1 %s THROTTLE 5 1 20 1 MS",
    "CL.MTAKE %s LEASE 2 20 a %s LEASE 2 20 b %s SHADOW LEASE 1 20 c MS",
    "CL.MPEEK %s THROTTLE 5 1 20 1 %s FUNNEL 5 1 20 1 %s LOG 5 20 1 %s LEASE 5 20 id MS",
    "CL.MSETTLE %s THROTTLE 5 1 20 3 %s THROTTLE 5 1 20 -3 %s THROTTLE 5 1 20 1 MS",
    "CL.MSETTLE %s LOG 5 20 2 %s LOG 5 20 -2 %s LEASE 5 0 id %s FIXED 5 20 1 AGO 1 MS",
};
enum { ALL = sizeof calls / sizeof *calls };
static long long made[SOURCES];
static volatile int running;
enum { WRITES_IN_EXPIRED = 2 };

/* Runs a command whose words are separated by spaces. */
static void run_words(Context *context, char *words) {
    String *strings[WORDS];
    int count = 0;
    char *name = strtok(words, " ");
    for (char *word; count < WORDS && (word = strtok(NULL, " "));)
        strings[count++] = create_string(NULL, word, strlen(word));
    Reply *reply = call(context, name, "!v", strings, (size_t)count);
    if (reply) free_call_reply(reply);
    for (int i = 0; i < count; i++) free_string(NULL, strings[i]);
}

/* Calls something on one or all of four keys, some of which have queues; with `other`, on one other key than that. */
static void call_one(Context *context, int source, const char *other) {
    static uint32_t random = 2463534242;
    random ^= random << 13, random ^= random >> 17, random ^= random << 5;
    if (!other && random / 512 % 3 == 0) {
        char words[256], keys[4][3];
        for (int i = 0; i < 4; i++) sprintf(keys[i], "k%u", (random / 8 + i * (random & 1 ? 1 : 3)) % 4);
        snprintf(words, sizeof words, many[random / 32 % (sizeof many / sizeof *many)], keys[0], keys[1], keys[2], keys[3]);
        run_words(context, words);
        made[source]++;
        return;
    }
    const char *const *one = calls[random / 4 % ALL];
    if (!one[1]) {
        plain++;
        Reply *reply = other || random / 512 % 16 ? NULL : call(context, one[0], "!");
        plain--;
        if (reply) free_call_reply(reply);
        return;
    }
    char key[3] = {'k', (char)('0' + random % 4), 0}, words[6][8];
    if (other && other[0] == 'k' && other[1] == key[1]) key[1] ^= 1;
    int count = sscanf(one[1], "%7s %7s %7s %7s %7s %7s", words[0], words[1], words[2], words[3], words[4], words[5]);
    char format[9] = "!cccccc";
    format[2 + (count > 0 ? count : 0)] = 0;
    int is_plain = strncmp(one[0], "CL.", 3) != 0;
    plain += is_plain;
    Reply *reply = call(context, one[0], format, key, words[0], words[1], words[2], words[3], words[4], words[5]);
    plain -= is_plain;
    if (reply) free_call_reply(reply);
    made[source]++;
}

static int on_event(Context *context, int type, const char *event, String *name) {
    size_t length;
    const char *key = string_ptr_len(name, &length);
    for (int i = 0; i < ordered; i++) {
        struct Order *order = orders + i;
        if (strcmp(order->event, event) || (strcmp(order->key, "*") && strncmp(order->key, key, length + 1))) continue;
        String *words[WORDS];
        for (int j = 1; j < order->count; j++)
            words[j] = create_string(NULL, order->words[j], strlen(order->words[j]));
        Reply *reply = call(context, order->words[0], "!v", words + 1, (size_t)order->count - 1);
        if (reply) free_call_reply(reply);
        for (int j = 1; j < order->count; j++) free_string(NULL, words[j]);
        obeyed++;
    }
    /* In these events, a module that writes to the event's own key ends any server that has them: the server's SET (a
     * key that is new or overwritten), HSET and ZADD (an expired one) go on with what they knew of the key. If the
     * server looks for expired keys by itself, it also goes on with what it knew of others. */
    int spares = type & (EXPIRED | NEW | OVERWRITTEN | TYPE_CHANGED);
    if (type == EXPIRED && running != WRITES_IN_EXPIRED) return 0;
    /* The server propagates its own commands, and the deletion of an expired key, after their events, and so after what
     * is written to the key in them: replicas would lose that. So events of such commands do nothing more, and neither
     * do the events of what is done as a key expires. */
    static int expires;
    if (!running || expires || plain) return 0;
    expires = type == EXPIRED;
    call_one(context, EVENT, spares ? key : NULL);
    expires = 0;
    return 0;
}

/* NESTED.ON event key command ...: runs the command at each such event. */
static int on(Context *context, String **words, int count) {
    struct Order *order = orders + ordered;
    if (ordered == ORDERS || count < 4 || count - 3 > WORDS) return reply_with_long_long(context, -1);
    snprintf(order->event, sizeof order->event, "%s", string_ptr_len(words[1], NULL));
    snprintf(order->key, sizeof order->key, "%s", string_ptr_len(words[2], NULL));
    for (int i = 3; i < count; i++)
        snprintf(order->words[i - 3], sizeof order->words[0], "%s", string_ptr_len(words[i], NULL));
    order->count = count - 3;
    ordered++;
    return reply_with_long_long(context, ordered);
}

/* NESTED.OFF: forgets all that, and replies how often a command was run. */
static int off(Context *context, String **words, int count) {
    (void)words, (void)count;
    long long times = obeyed;
    ordered = 0, obeyed = 0;
    return reply_with_long_long(context, times);
}

static void on_timer(Context *context, void *data) {
    call_one(context, TIMER, NULL);
    if (running) create_timer(context, 3, on_timer, data);
}

static void *thread(void *data) {
    Context *context = get_thread_safe_context(NULL);
    while (running) {
        lock(context);
        call_one(context, THREAD, NULL);
        unlock(context);
        usleep(3000);
    }
    free_thread_safe_context(context);
    return data;
}

/* NESTED.START [an argument, if the server does not look for expired keys by itself] */
static int start(Context *context, String **words, int count) {
    (void)words;
    pthread_t id;
    running = count;
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
        get_api("RedisModule_StringPtrLen", &string_ptr_len) || get_api("RedisModule_CreateString", &create_string) ||
        get_api("RedisModule_FreeString", &free_string) || get_api("RedisModule_CreateTimer", &create_timer) ||
        get_api("RedisModule_SubscribeToKeyspaceEvents", &subscribe_to_keyspace_events))
        return 1;
    set_attributes(context, "nested", 1, 1);
    return create_command(context, "nested.start", start, "", 0, 0, 0) ||
           create_command(context, "nested.stop", stop, "", 0, 0, 0) ||
           create_command(context, "nested.refuse", start_refusing, "", 0, 0, 0) ||
           create_command(context, "nested.on", on, "", 0, 0, 0) ||
           create_command(context, "nested.off", off, "", 0, 0, 0) ||
           subscribe_to_keyspace_events(context,
                                        GENERIC | STRING | HASH | ZSET | EXPIRED | EVICTED | NEW | OVERWRITTEN |
                                            TYPE_CHANGED,
                                        on_event);
}
