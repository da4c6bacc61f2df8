<?php

namespace App\Http\Middleware;

use Closure;
use Illuminate\Http\Request;
use Illuminate\Http\Response;
use Illuminate\Support\Facades\Redis;
use InvalidArgumentException;
use RedisException;

/**
 * Limits requests by CL.THROTTLE. A route names the middleware with the limit and the choice for the time in which the
 * server is unavailable: cell:9,60,60,open or cell:9,60,60,closed, if the name that it is registered by is cell.
 */
class Throttle
{
    public function handle(Request $request, Closure $next, string $burst, string $count, string $per, string $choice)
    {
        if (! in_array($choice, ['open', 'closed'], true)) {
            throw new InvalidArgumentException("the choice must be open or closed, not $choice");
        }
        $client = $request->user()?->getAuthIdentifier() ?? $request->ip();
        try {
            $reply = Redis::executeRaw(['CL.THROTTLE', "http:$client", $burst, $count, $per]);
            $problem = is_array($reply) ? null : Redis::client()->getLastError();
        } catch (RedisException $e) {
            $problem = $e->getMessage();
        }
        if ($problem !== null) {
            // An error reply begins with its code, in capital letters. All but these are errors of the call or of the
            // setup, which must be seen: Laravel responds with 500.
            $cannotDecide = '/^(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN'
                . '|ERR max number of clients) /';
            if (preg_match('/^[A-Z]+ /', $problem) && ! preg_match($cannotDecide, $problem)) {
                throw new RedisException($problem);
            }
            error_log("no rate limit: $problem");

            return $choice === 'open' ? $next($request) : new Response('Rate limiter unavailable', 503);
        }
        [$limited, $limit, $remaining, $retryAfter, $resetAfter] = $reply;
        $response = $limited ? new Response('Too many requests', 429, ['Retry-After' => $retryAfter]) : $next($request);
        $response->headers->add([
            'X-RateLimit-Limit' => $limit,
            'X-RateLimit-Remaining' => $remaining,
            'X-RateLimit-Reset' => $resetAfter,
        ]);

        return $response;
    }
}
