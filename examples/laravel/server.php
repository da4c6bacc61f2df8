<?php

/*
 * The middleware in a pipeline of Laravel's components, without the rest of a Laravel application. Debian packages:
 * php-cli, php-redis, php-illuminate-container, php-illuminate-http, php-illuminate-pipeline, php-illuminate-redis.
 *
 * Usage: PHP_CLI_SERVER_WORKERS=4 php -S 127.0.0.1:8000 server.php, with a server on port 6379. REDIS_PORT is another
 * port.
 */

use App\Http\Middleware\Throttle;
use Illuminate\Container\Container;
use Illuminate\Http\Request;
use Illuminate\Http\Response;
use Illuminate\Pipeline\Pipeline;
use Illuminate\Redis\RedisManager;
use Illuminate\Support\Facades\Facade;

foreach (['Container', 'Http', 'Pipeline', 'Redis', 'Support'] as $component) {
    require_once "Illuminate/$component/autoload.php";
}
require_once __DIR__ . '/Throttle.php';

$app = new Container();
Facade::setFacadeApplication($app);
// As in config/database.php. A call is not repeated, because one whose reply was lost may have been admitted.
$connection = [
    'host' => '127.0.0.1',
    'port' => (int) (getenv('REDIS_PORT') ?: 6379),
    'timeout' => 0.5,
    'read_timeout' => 0.5,
    'max_retries' => 0,
];
$app->instance('redis', new RedisManager($app, 'phpredis', ['default' => $connection]));

(new Pipeline($app))
    ->send(Request::capture())
    ->through([Throttle::class . ':9,60,60,open'])
    ->then(fn () => new Response("hello\n"))
    ->send();
