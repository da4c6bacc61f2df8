/* The smallest possible module: it makes only the calls of the server's module API that a limiter on such a key needs. It
 * reads no argument and no clock, decides nothing, and writes the value that was there. The difference between a line of
 * the table and its floor is the cost of the module; the rest is the cost of the server.
 *
 * It declares the few functions that it needs, so that it compiles without the server's header. */

#include <string.h>
#include <time.h>

typedef struct Ctx Ctx;
typedef struct Key Key;
typedef struct String String;
typedef int Command(Ctx *ctx, String **argv, int argc);

enum { OK, ERR };
enum { READ = 1, WRITE = 2 };
enum { STRING_EVENT = 1 << 3, GENERIC_EVENT = 1 << 2, HASH_EVENT = 1 << 6 };
enum { NO_IMPLICIT_SIGNAL_MODIFIED = 1 << 1 };

static int (*CreateCommand)(Ctx *, const char *, Command *, const char *, int, int, int);
static void (*SetModuleAttribs)(Ctx *, const char *, int, int);
static void (*SetModuleOptions)(Ctx *, int);
static Key *(*OpenKey)(Ctx *, String *, int);
static void (*CloseKey)(Key *);
static int (*KeyType)(Key *);
static char *(*StringDMA)(Key *, size_t *, int);
static int (*StringTruncate)(Key *, size_t);
static int (*HashGet)(Key *, int, ...);
static int (*HashSet)(Key *, int, ...);
static int (*SetAbsExpire)(Key *, long long);
static long long (*GetAbsExpire)(Key *);
static int (*SignalModifiedKey)(Ctx *, String *);
static int (*NotifyKeyspaceEvent)(Ctx *, int, const char *, String *);
static int (*Replicate)(Ctx *, const char *, const char *, ...);
static int (*ReplicateVerbatim)(Ctx *);
static const char *(*StringPtrLen)(const String *, size_t *);
static String *(*CreateString)(Ctx *, const char *, size_t);
static void (*FreeString)(Ctx *, String *);
static int (*ReplyWithArray)(Ctx *, long);
static int (*ReplyWithLongLong)(Ctx *, long long);

/* An instant in 2096, in milliseconds, so that nothing expires. */
static const long long NEVER = 4000000000000LL;
static const char TAT[] = "1700000000000000000", MILLIS[] = "4000000000000";

static String *pxat, *timestamp, *fields[4];

static int five(Ctx *ctx, int limited, long long limit, long long remaining, long long retry, long long reset) {
    ReplyWithArray(ctx, 5);
    ReplyWithLongLong(ctx, limited);
    ReplyWithLongLong(ctx, limit);
    ReplyWithLongLong(ctx, remaining);
    ReplyWithLongLong(ctx, retry);
    return ReplyWithLongLong(ctx, reset);
}

/* The module's reply to the same call, because the server takes longer for numbers with more digits. */
static int answer(Ctx *ctx, int limited) {
    return limited ? five(ctx, 1, 1, 0, 3600, 3600) : five(ctx, 0, 1000001, 996401, -1, 3600);
}

/* Opens a string, and reads its bytes. */
static int refused(Ctx *ctx, String **argv, int argc) {
    (void)argc;
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    size_t length = 0;
    KeyType(key);
    StringDMA(key, &length, READ | WRITE);
    CloseKey(key);
    return answer(ctx, 1);
}

/* Opens a string, overwrites it in place, and sets its expiry. */
static void overwrite(Ctx *ctx, String *name, int expire) {
    Key *key = OpenKey(ctx, name, READ | WRITE);
    size_t length = 0;
    KeyType(key);
    char *bytes = StringDMA(key, &length, READ | WRITE);
    if (length != sizeof TAT - 1) {
        StringTruncate(key, sizeof TAT - 1);
        bytes = StringDMA(key, &length, READ | WRITE);
        expire = 1;
    }
    memcpy(bytes, TAT, sizeof TAT - 1);
    NotifyKeyspaceEvent(ctx, STRING_EVENT, "set", name);
    if (expire) {
        SetAbsExpire(key, NEVER);
        NotifyKeyspaceEvent(ctx, GENERIC_EVENT, "expire", name);
    } else {
        GetAbsExpire(key);
    }
    CloseKey(key);
    SignalModifiedKey(ctx, name);
}

/* Without a replica and without an append-only file. */
static int admitted(Ctx *ctx, String **argv, int argc) {
    (void)argc;
    overwrite(ctx, argv[1], 1);
    ReplicateVerbatim(ctx);
    return answer(ctx, 0);
}

/* The same for each key of a call for several limiters, with a combined row and one for each limiter. A limiter's
 * arguments are not read, and the positions of the keys are declared once, when the module is loaded. */
enum { WORDS = 6 }; /* key THROTTLE max_burst count period quantity */
static int several(Ctx *ctx, String **argv, int argc) {
    for (int key = 1; key < argc; key += WORDS) overwrite(ctx, argv[key], 1);
    ReplicateVerbatim(ctx);
    ReplyWithArray(ctx, 1 + argc / WORDS);
    for (int row = 0; row <= argc / WORDS; row++) answer(ctx, 0);
    return OK;
}

/* Replicates the effect in the cheapest exact form: five arguments, of which one was created beforehand. */
static int propagated(Ctx *ctx, String **argv, int argc) {
    (void)argc;
    overwrite(ctx, argv[1], 1);
    Replicate(ctx, "SET", "sbsb", argv[1], TAT, sizeof TAT - 1, pxat, MILLIS, sizeof MILLIS - 1);
    return answer(ctx, 0);
}

/* Returns the number in a string of digits. */
static long long number(const char *digits, size_t length) {
    long long value = 0;
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9') return -1;
        value = value * 10 + (digits[i] - '0');
    }
    return value;
}

static long long argument(String *argument) {
    size_t length;
    const char *digits = StringPtrLen(argument, &length);
    return number(digits, length);
}

/* An open key after its decision: its stored bytes, and the row of its reply. */
typedef struct {
    Key *key;
    char *bytes;
    long long tat, debt, limit, remaining;
} Decided;

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return 1700000000000000000 + time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The additional work of every limiter: reads the arguments, the stored digits and a clock, decides, and writes other
 * digits and another expiry. Unlike the module, it has no overflow checks, options, units, effects or counters. Returns
 * false for a refusal, which does not occur in a measurement. */
static int decide(Ctx *ctx, String *name, String **numbers, long long quantity, long long now, Decided *decided) {
    long long burst = argument(numbers[0]), count = argument(numbers[1]), period = argument(numbers[2]);
    if (burst < 0 || count < 1 || period < 1 || quantity < 0) return 0;
    long long interval = period * 1000000000 / count, tolerance = interval * (burst + 1);
    size_t length = 0;
    decided->key = OpenKey(ctx, name, READ | WRITE);
    KeyType(decided->key);
    decided->bytes = StringDMA(decided->key, &length, READ | WRITE);
    long long tat = number(decided->bytes, length);
    decided->debt = (tat > now ? tat - now : 0) + interval * quantity;
    decided->tat = now + decided->debt;
    decided->limit = burst + 1;
    decided->remaining = (tolerance - decided->debt) / interval;
    if (length == sizeof TAT - 1 && decided->debt <= tolerance) return 1;
    CloseKey(decided->key);
    return 0;
}

static void carry_out(Ctx *ctx, String *name, Decided *decided) {
    long long digits = decided->tat;
    for (int i = sizeof TAT - 2; i >= 0; i--) {
        decided->bytes[i] = '0' + digits % 10;
        digits /= 10;
    }
    NotifyKeyspaceEvent(ctx, STRING_EVENT, "set", name);
    SetAbsExpire(decided->key, NEVER + decided->debt / 1000000);
    NotifyKeyspaceEvent(ctx, GENERIC_EVENT, "expire", name);
    CloseKey(decided->key);
    SignalModifiedKey(ctx, name);
}

static int row(Ctx *ctx, Decided *decided) {
    return five(ctx, 0, decided->limit, decided->remaining, -1, (decided->debt + 999999999) / 1000000000);
}

static int decided(Ctx *ctx, String **argv, int argc) {
    (void)argc;
    Decided one;
    if (!decide(ctx, argv[1], argv + 2, 1, now(), &one)) return ERR;
    carry_out(ctx, argv[1], &one);
    ReplicateVerbatim(ctx);
    return row(ctx, &one);
}

/* The same for three keys, all of which are decided before the first is written. */
static int several_decided(Ctx *ctx, String **argv, int argc) {
    enum { KEYS = 3 };
    Decided all[KEYS], sum;
    long long instant = now();
    if (argc != 1 + KEYS * WORDS) return ERR;
    for (int i = 0; i < KEYS; i++) {
        String **words = argv + 1 + i * WORDS;
        if (decide(ctx, words[0], words + 2, argument(words[5]), instant, &all[i])) continue;
        while (i--) CloseKey(all[i].key);
        return ERR;
    }
    sum = all[0];
    for (int i = 0; i < KEYS; i++) {
        carry_out(ctx, argv[1 + i * WORDS], &all[i]);
        if (all[i].remaining < sum.remaining) sum.limit = all[i].limit, sum.remaining = all[i].remaining;
        if (all[i].debt > sum.debt) sum.debt = all[i].debt;
    }
    ReplicateVerbatim(ctx);
    ReplyWithArray(ctx, KEYS + 1);
    row(ctx, &sum);
    for (int i = 0; i < KEYS; i++) row(ctx, &all[i]);
    return OK;
}

/* A counter, whose expiry is only read. */
static int fixed(Ctx *ctx, String **argv, int argc) {
    (void)argc;
    overwrite(ctx, argv[1], 0);
    ReplicateVerbatim(ctx);
    return answer(ctx, 0);
}

/* A hash of four fields: reads two and sets three, like a funnel that is not due to leak. */
static int funnel(Ctx *ctx, String **argv, int argc) {
    (void)argc;
    String *left = NULL, *since = NULL;
    Key *key = OpenKey(ctx, argv[1], READ | WRITE);
    KeyType(key);
    HashGet(key, 0, fields[0], &left, fields[1], &since, NULL);
    if (left) FreeString(ctx, left);
    if (since) FreeString(ctx, since);
    String *capacity = CreateString(ctx, "1000000", 7), *rate = CreateString(ctx, "1", 1), *quota = CreateString(ctx, "996400", 6);
    HashSet(key, 0, fields[0], quota, fields[2], capacity, fields[3], rate, since ? NULL : fields[1], timestamp, NULL);
    FreeString(ctx, capacity);
    FreeString(ctx, rate);
    FreeString(ctx, quota);
    NotifyKeyspaceEvent(ctx, HASH_EVENT, "hset", argv[1]);
    SetAbsExpire(key, NEVER);
    NotifyKeyspaceEvent(ctx, GENERIC_EVENT, "expire", argv[1]);
    CloseKey(key);
    SignalModifiedKey(ctx, argv[1]);
    ReplicateVerbatim(ctx);
    return answer(ctx, 0);
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    int (*get)(const char *, void *) = *(int (**)(const char *, void *))ctx; /* the server has put its address there */
#define NEEDED(name)                                              \
    if (get("RedisModule_" #name, (void *)&name) != OK || !name) \
        return ERR
    NEEDED(CreateCommand);
    NEEDED(SetModuleAttribs);
    NEEDED(SetModuleOptions);
    NEEDED(OpenKey);
    NEEDED(CloseKey);
    NEEDED(KeyType);
    NEEDED(StringDMA);
    NEEDED(StringTruncate);
    NEEDED(HashGet);
    NEEDED(HashSet);
    NEEDED(SetAbsExpire);
    NEEDED(GetAbsExpire);
    NEEDED(SignalModifiedKey);
    NEEDED(NotifyKeyspaceEvent);
    NEEDED(Replicate);
    NEEDED(ReplicateVerbatim);
    NEEDED(StringPtrLen);
    NEEDED(CreateString);
    NEEDED(FreeString);
    NEEDED(ReplyWithArray);
    NEEDED(ReplyWithLongLong);
    SetModuleAttribs(ctx, "floor", 1, 1);
    SetModuleOptions(ctx, NO_IMPLICIT_SIGNAL_MODIFIED);
    pxat = CreateString(NULL, "PXAT", 4);
    timestamp = CreateString(NULL, TAT, sizeof TAT - 1);
    const char *names[] = {"left_quota", "leaking_ts", "capacity", "leaking_rate"};
    for (int i = 0; i < 4; i++) fields[i] = CreateString(NULL, names[i], strlen(names[i]));
    const char *flags = "write deny-oom fast";
    if (CreateCommand(ctx, "floor.refused", refused, flags, 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.admitted", admitted, flags, 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.several", several, flags, 1, -WORDS, WORDS) != OK ||
        CreateCommand(ctx, "floor.several-decided", several_decided, flags, 1, -WORDS, WORDS) != OK ||
        CreateCommand(ctx, "floor.propagated", propagated, flags, 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.fixed", fixed, flags, 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.decided", decided, flags, 1, 1, 1) != OK ||
        CreateCommand(ctx, "floor.funnel", funnel, flags, 1, 1, 1) != OK)
        return ERR;
    return OK;
}
