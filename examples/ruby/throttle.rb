# CL.THROTTLE with the redis gem. Arguments: URL of the server, URL of a server that is down.
require 'redis'

Decision = Struct.new(:limited, :limit, :remaining, :retry_after, :reset_after) do
  def limited? = limited == 1
end

class Limiter
  attr_reader :redis

  def initialize(url, max_burst:, count:, period:)
    # Timeouts are short, because a slow limiter is of no use. The client reconnects at the next call. It does not
    # retry, because a call whose reply was lost may have been admitted.
    @redis = Redis.new(url: url, timeout: 0.5, reconnect_attempts: 0)
    @limit = [max_burst, count, period]
  end

  def throttle(key, quantity = 1)
    Decision.new(*@redis.call('CL.THROTTLE', key, *@limit, quantity))
  end
end

# The error replies of a server that does not decide now.
CANNOT_DECIDE = /\A(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|ERR max number of clients) /
# Parts of what the gem calls a connection error: an error reply, such as for a wrong password, and a certificate.
SET_UP = /\A[A-Z]+ |certificate verify failed/

# Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen.
def unavailable?(error)
  return true if CANNOT_DECIDE.match?(error.message)

  error.is_a?(Redis::BaseConnectionError) && !SET_UP.match?(error.message)
end

# Handles an HTTP request: returns the status and headers of its response.
def handle(limiter, key, fail_open:)
  decision = limiter.throttle(key)
  decision.limited? ? [429, { 'Retry-After' => decision.retry_after.to_s }] : [200, {}]
rescue Redis::BaseError => e
  unless unavailable?(e)
    warn "#{key}: #{e.message}"
    return [500, {}]
  end
  warn "no decision on #{key}: #{e.message}"
  [fail_open ? 200 : 503, {}]
end

url = ARGV[0] || 'redis://127.0.0.1:6379'
url_down = ARGV[1] || 'redis://127.0.0.1:1' # nothing listens there
key = 'example:ruby'
limiter = Limiter.new(url, max_burst: 2, count: 30, period: 60) # 3 at once, then one every 2 seconds
limiter.redis.del(key)
4.times do
  d = limiter.throttle(key)
  puts "#{d.limited? ? 'refused' : 'admitted'}: limit #{d.limit}, remaining #{d.remaining}, " \
       "retry after #{d.retry_after}, reset after #{d.reset_after}"
end
status, headers = handle(limiter, key, fail_open: false)
puts "a request now: #{status}, Retry-After: #{headers['Retry-After']}"
sleep headers['Retry-After'].to_i
puts "a request after the wait: #{handle(limiter, key, fail_open: false)[0]}"

limiter.redis.set(key, 'of another type')
puts "an error of the call, fail open: #{handle(limiter, key, fail_open: true)[0]}"
limiter.redis.del(key)

down = Limiter.new(url_down, max_burst: 2, count: 30, period: 60)
puts "server down, fail open: #{handle(down, key, fail_open: true)[0]}"
puts "server down, fail closed: #{handle(down, key, fail_open: false)[0]}"
