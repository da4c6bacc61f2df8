<?php
// CL.THROTTLE with phpredis. Arguments: host and port of the server, host and port of a server that is down.
declare(strict_types=1);

const TIMEOUT = 0.5; // seconds: a limiter that does not answer soon is no help

final class Decision
{
    public function __construct(
        public readonly int $limited,
        public readonly int $limit,
        public readonly int $remaining,
        public readonly int $retryAfter,
        public readonly int $resetAfter,
    ) {
    }
}

final class Limiter
{
    private ?Redis $redis = null;

    public function __construct(
        private string $host,
        private int $port,
        private int $maxBurst,
        private int $count,
        private int $period,
    ) {
    }

    /** Returns the connection of the last call, or a new one. With pconnect() it would outlive the request. */
    public function redis(): Redis
    {
        if ($this->redis === null) {
            $redis = new Redis();
            $redis->connect($this->host, $this->port, TIMEOUT, null, 0, TIMEOUT);
            $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
            $this->redis = $redis;
        }
        return $this->redis;
    }

    /** @throws RedisException if there is no decision */
    public function throttle(string $key, int $quantity = 1): Decision
    {
        try {
            $redis = $this->redis();
            $arguments = [$this->maxBurst, $this->count, $this->period, $quantity];
            $reply = $redis->rawCommand('CL.THROTTLE', $key, ...$arguments);
            if (!is_array($reply)) { // an error reply is false, and its text is kept
                throw new RedisException($redis->getLastError() ?? 'no answer');
            }
            return new Decision(...$reply);
        } catch (RedisException $error) {
            $this->redis = null; // an answer that comes too late would be taken for the next call's
            throw $error;
        }
    }
}

/**
 * Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen. phpredis
 * throws the same class for both, but an error reply begins with its code, in capital letters.
 */
function isUnavailable(RedisException $error): bool
{
    $cannotDecide = '/^(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN'
        . '|ERR max number of clients) /';
    return preg_match($cannotDecide, $error->getMessage()) || !preg_match('/^[A-Z]+ /', $error->getMessage());
}

/** Handles an HTTP request: returns the status and headers of its response. */
function handle(Limiter $limiter, string $key, bool $failOpen): array
{
    try {
        $decision = $limiter->throttle($key);
    } catch (RedisException $error) {
        if (!isUnavailable($error)) {
            fwrite(STDERR, "$key: {$error->getMessage()}\n");
            return [500, []];
        }
        fwrite(STDERR, "no decision on $key: {$error->getMessage()}\n");
        return [$failOpen ? 200 : 503, []];
    }
    return $decision->limited ? [429, ['Retry-After' => $decision->retryAfter]] : [200, []];
}

$key = 'example:php';
// 3 at once, then one every 2 seconds.
$limiter = new Limiter($argv[1] ?? '127.0.0.1', (int) ($argv[2] ?? 6379), 2, 30, 60);
$limiter->redis()->del($key);
for ($i = 0; $i < 4; $i++) {
    $d = $limiter->throttle($key);
    $outcome = $d->limited ? 'refused' : 'admitted';
    echo "$outcome: limit $d->limit, remaining $d->remaining,",
        " retry after $d->retryAfter, reset after $d->resetAfter\n";
}
[$status, $headers] = handle($limiter, $key, false);
echo "a request now: $status, Retry-After: {$headers['Retry-After']}\n";
sleep($headers['Retry-After']);
echo 'a request after the wait: ', handle($limiter, $key, false)[0], "\n";

$limiter->redis()->set($key, 'of another type');
echo 'an error of the call, fail open: ', handle($limiter, $key, true)[0], "\n";
$limiter->redis()->del($key);

$down = new Limiter($argv[3] ?? '127.0.0.1', (int) ($argv[4] ?? 1), 2, 30, 60); // nothing listens there
echo 'server down, fail open: ', handle($down, $key, true)[0], "\n";
echo 'server down, fail closed: ', handle($down, $key, false)[0], "\n";
