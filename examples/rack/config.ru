# An application with limits by rack-attack and CL.FIXED. Debian packages: puma, ruby-rack-attack, ruby-redis; or
# gem install puma rack-attack redis connection_pool.
#
# Usage: puma config.ru, with a server on port 6379. In Rails, all but the last two statements is an initializer:
# rack-attack adds itself to the middleware there.

require 'connection_pool'
require 'rack/attack'
require_relative 'cell_store'

url = ENV.fetch('REDIS_URL', 'redis://127.0.0.1:6379')
# A call is not repeated, because one whose reply was lost may have been counted.
redis = ConnectionPool.new(size: 5) { Redis.new(url: url, timeout: 0.5, reconnect_attempts: 0) }
Rack::Attack.cache.store = CellStore.new(redis, when_unavailable: :fail_open)

Rack::Attack.throttle('requests', limit: 10, period: 60) { |request| request.ip }

Rack::Attack.throttled_responder = lambda do |request|
  data = request.env['rack.attack.match_data']
  next [503, { 'content-type' => 'text/plain' }, ["Rate limiter unavailable\n"]] if data[:count] == CellStore::UNKNOWN

  wait = data[:period] - data[:epoch_time] % data[:period]
  [429, { 'content-type' => 'text/plain', 'retry-after' => wait.to_s }, ["Too many requests\n"]]
end

use Rack::Attack
run ->(_env) { [200, { 'content-type' => 'text/plain' }, ["hello\n"]] }
