/* CL.THROTTLE with hiredis. Arguments: host and port of the server, host and port of a server that is down.
 *
 *   cc -o throttle throttle.c -lhiredis && ./throttle
 */
#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* Short, because a slow limiter is of no use. */
static const struct timeval timeout = {.tv_sec = 0, .tv_usec = 500000};

struct limiter {
    const char *host;
    int port;
    long long max_burst, count, period;
    redisContext *connection; /* NULL before the first call, and after an error */
    char error[128];          /* of the last call that failed */
    bool unavailable;         /* whether that was because no server decides now */
};

struct decision {
    long long limited, limit, remaining, retry_after, reset_after;
};

static void limiter_close(struct limiter *limiter) {
    if (limiter->connection) redisFree(limiter->connection);
    limiter->connection = NULL;
}

/* Drops the connection, because a late reply would be read as the reply to the next call. */
static bool limiter_failed(struct limiter *limiter, const char *why, bool unavailable) {
    snprintf(limiter->error, sizeof limiter->error, "%s", why);
    limiter->unavailable = unavailable;
    limiter_close(limiter);
    return false;
}

/* Uses the connection of the last call, or opens a new one. */
static bool limiter_connect(struct limiter *limiter) {
    if (limiter->connection) return true;
    limiter->connection = redisConnectWithTimeout(limiter->host, limiter->port, timeout);
    if (!limiter->connection) return limiter_failed(limiter, "out of memory", true);
    if (limiter->connection->err || redisSetTimeout(limiter->connection, timeout) != REDIS_OK)
        return limiter_failed(limiter, limiter->connection->errstr, true);
    return true;
}

/* Whether an error reply is that of a server that does not decide now. All others are errors of the call or of the
 * setup: they must be seen. */
static bool cannot_decide(const char *reply) {
    static const char *const codes[] = {"BUSY ",       "CLUSTERDOWN ", "LOADING ",  "MASTERDOWN ", "MISCONF ",
                                        "NOREPLICAS ", "OOM ",         "READONLY ", "TRYAGAIN ",   "ERR max number of clients "};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (!strncmp(reply, codes[i], strlen(codes[i]))) return true;
    return false;
}

/* Takes quantity units of key. Returns false if that fails; limiter->error gives the reason. */
static bool throttle(struct limiter *limiter, const char *key, long long quantity, struct decision *decision) {
    if (!limiter_connect(limiter)) return false;
    redisReply *reply = redisCommand(limiter->connection, "CL.THROTTLE %b %lld %lld %lld %lld", key, strlen(key),
                                     limiter->max_burst, limiter->count, limiter->period, quantity);
    if (!reply) return limiter_failed(limiter, limiter->connection->errstr, true);
    bool decided = reply->type == REDIS_REPLY_ARRAY && reply->elements == 5;
    if (decided) {
        decision->limited = reply->element[0]->integer;
        decision->limit = reply->element[1]->integer;
        decision->remaining = reply->element[2]->integer;
        decision->retry_after = reply->element[3]->integer;
        decision->reset_after = reply->element[4]->integer;
    } else if (reply->type == REDIS_REPLY_ERROR) {
        limiter_failed(limiter, reply->str, cannot_decide(reply->str));
    } else {
        limiter_failed(limiter, "not five integers", false);
    }
    freeReplyObject(reply);
    return decided;
}

/* Handles an HTTP request: returns the status of its response, and for a 429 the seconds for Retry-After. */
static int handle(struct limiter *limiter, const char *key, bool fail_open, long long *retry_after) {
    struct decision decision;
    if (!throttle(limiter, key, 1, &decision)) {
        fprintf(stderr, "%s%s: %s\n", limiter->unavailable ? "no decision on " : "", key, limiter->error);
        if (!limiter->unavailable) return 500;
        return fail_open ? 200 : 503;
    }
    *retry_after = decision.retry_after;
    return decision.limited ? 429 : 200;
}

int main(int argc, char **argv) {
    const char *key = "example:c";
    /* 3 at once, then one every 2 seconds. */
    struct limiter limiter = {argc > 1 ? argv[1] : "127.0.0.1", argc > 2 ? atoi(argv[2]) : 6379, 2, 30, 60, NULL, "", false};
    struct limiter down = {argc > 3 ? argv[3] : "127.0.0.1", argc > 4 ? atoi(argv[4]) : 1, 2, 30, 60, NULL, "", false};

    if (limiter_connect(&limiter)) freeReplyObject(redisCommand(limiter.connection, "DEL %s", key));
    for (int i = 0; i < 4; i++) {
        struct decision d;
        if (!throttle(&limiter, key, 1, &d)) {
            fprintf(stderr, "%s\n", limiter.error);
            return 1;
        }
        printf("%s: limit %lld, remaining %lld, retry after %lld, reset after %lld\n",
               d.limited ? "refused" : "admitted", d.limit, d.remaining, d.retry_after, d.reset_after);
    }
    long long wait = 0;
    int status = handle(&limiter, key, false, &wait);
    printf("a request now: %d, Retry-After: %lld\n", status, wait);
    sleep((unsigned)wait);
    printf("a request after the wait: %d\n", handle(&limiter, key, false, &wait));

    if (limiter_connect(&limiter)) freeReplyObject(redisCommand(limiter.connection, "SET %s %s", key, "of-another-type"));
    printf("an error of the call, fail open: %d\n", handle(&limiter, key, true, &wait));
    if (limiter_connect(&limiter)) freeReplyObject(redisCommand(limiter.connection, "DEL %s", key));

    printf("server down, fail open: %d\n", handle(&down, key, true, &wait));
    printf("server down, fail closed: %d\n", handle(&down, key, false, &wait));
    limiter_close(&limiter);
    limiter_close(&down);
    return 0;
}
