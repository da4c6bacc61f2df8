// CL.THROTTLE with Jedis 7 or newer. Arguments: URL of the server, URL of a server that is down.
import java.net.URI;
import java.security.GeneralSecurityException;
import java.util.List;
import java.util.regex.Pattern;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.commands.ProtocolCommand;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.util.SafeEncoder;

public final class Throttle {
    record Decision(boolean limited, long limit, long remaining, long retryAfter, long resetAfter) {}

    /** The response to an HTTP request. retryAfter goes into its header unless it is null. */
    record Response(int status, Long retryAfter) {}

    static final class Limiter implements AutoCloseable {
        private static final ProtocolCommand THROTTLE = () -> SafeEncoder.encode("CL.THROTTLE");

        final RedisClient redis;
        private final String maxBurst;
        private final String count;
        private final String period;

        /** Keeps a pool of connections. Timeouts are short, because a slow limiter is of no use. */
        Limiter(String url, long maxBurst, long count, long period) {
            URI uri = URI.create(url);
            redis = RedisClient.builder()
                    .hostAndPort(new HostAndPort(uri.getHost(), uri.getPort()))
                    .clientConfig(DefaultJedisClientConfig.builder()
                            .connectionTimeoutMillis(500)
                            .socketTimeoutMillis(500)
                            .build())
                    .build();
            this.maxBurst = Long.toString(maxBurst);
            this.count = Long.toString(count);
            this.period = Long.toString(period);
        }

        Decision throttle(String key, long quantity) {
            List<?> reply = (List<?>)
                    redis.sendCommand(THROTTLE, key, maxBurst, count, period, Long.toString(quantity));
            long[] n = reply.stream().mapToLong(item -> (Long) item).toArray();
            return new Decision(n[0] == 1, n[1], n[2], n[3], n[4]);
        }

        @Override
        public void close() {
            redis.close();
        }
    }

    /** The error replies of a server that does not decide now. */
    private static final Pattern CANNOT_DECIDE = Pattern.compile(
            "(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|ERR max number of clients) .*");

    /** Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen. */
    static boolean isUnavailable(JedisException error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (cause instanceof GeneralSecurityException) { // such as that of a certificate
                return false;
            }
        }
        return error instanceof JedisConnectionException || CANNOT_DECIDE.matcher(error.getMessage()).matches();
    }

    /** Handles an HTTP request. */
    static Response handle(Limiter limiter, String key, boolean failOpen) {
        try {
            Decision decision = limiter.throttle(key, 1);
            return decision.limited() ? new Response(429, decision.retryAfter()) : new Response(200, null);
        } catch (JedisException error) {
            if (!isUnavailable(error)) {
                System.err.println(key + ": " + error.getMessage());
                return new Response(500, null);
            }
            System.err.println("no decision on " + key + ": " + error.getMessage());
            return new Response(failOpen ? 200 : 503, null);
        }
    }

    public static void main(String[] arguments) throws InterruptedException {
        String url = arguments.length > 0 ? arguments[0] : "redis://127.0.0.1:6379";
        String urlDown = arguments.length > 1 ? arguments[1] : "redis://127.0.0.1:1"; // nothing listens there
        String key = "example:java";
        // 3 at once, then one every 2 seconds.
        try (Limiter limiter = new Limiter(url, 2, 30, 60);
                Limiter down = new Limiter(urlDown, 2, 30, 60)) {
            limiter.redis.del(key);
            for (int i = 0; i < 4; i++) {
                Decision d = limiter.throttle(key, 1);
                System.out.printf(
                        "%s: limit %d, remaining %d, retry after %d, reset after %d%n",
                        d.limited() ? "refused" : "admitted", d.limit(), d.remaining(), d.retryAfter(), d.resetAfter());
            }
            Response response = handle(limiter, key, false);
            System.out.printf("a request now: %d, Retry-After: %d%n", response.status(), response.retryAfter());
            Thread.sleep(response.retryAfter() * 1000);
            System.out.println("a request after the wait: " + handle(limiter, key, false).status());

            limiter.redis.set(key, "of another type");
            System.out.println("an error of the call, fail open: " + handle(limiter, key, true).status());
            limiter.redis.del(key);

            System.out.println("server down, fail open: " + handle(down, key, true).status());
            System.out.println("server down, fail closed: " + handle(down, key, false).status());
        }
    }
}
