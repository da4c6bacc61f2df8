# A store for rack-attack that counts by CL.FIXED: one call counts a request and opens its window.

require 'redis'

class CellStore
  # rack-attack compares the count with the limit of the rule, which a store does not learn. So this limit is never
  # reached: refused requests are counted too, as in other stores.
  NEVER = 1_000_000_000_000
  # The count of a request without a decision, if it is to be refused. It is above every limit.
  UNKNOWN = Float::INFINITY
  # The error replies of a server that does not decide now.
  CANNOT_DECIDE = /\A(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|ERR max number of clients) /
  # Parts of what the gem calls a connection error: an error reply, such as for a wrong password, and a certificate.
  SET_UP = /\A[A-Z]+ |certificate verify failed/

  # redis: a ConnectionPool. when_unavailable: :fail_open or :fail_closed, the choice if the server does not answer.
  # ask_again: for how long after that the server is not asked, in seconds.
  def initialize(redis, when_unavailable:, ask_again: 1)
    unless %i[fail_open fail_closed].include?(when_unavailable)
      raise ArgumentError, 'when_unavailable must be :fail_open or :fail_closed'
    end

    @redis = redis
    @otherwise = when_unavailable == :fail_open ? 0 : UNKNOWN
    @ask_again = ask_again
    @again = 0
  end

  def increment(key, amount, expires_in:)
    ask(@otherwise) do |redis|
      _, limit, remaining, = redis.call('CL.FIXED', key, NEVER, expires_in, amount)
      limit - remaining
    end
  end

  # Reads, writes and deletes bans. Without the server nobody is known to be banned.
  def read(key) = ask(nil) { |redis| redis.get(key) }
  def write(key, value, expires_in: nil) = ask(nil) { |redis| redis.set(key, value, ex: expires_in&.to_i) }
  def delete(key) = ask(nil) { |redis| redis.del(key) }
  def delete_matched(pattern) = ask(nil) { |redis| redis.scan_each(match: pattern) { |key| redis.del(key) } }

  private

  # Calls the server, or returns `otherwise` while it is unavailable.
  def ask(otherwise, &call)
    return otherwise if now < @again

    @redis.with(&call)
  rescue Redis::BaseError => e
    raise unless unavailable?(e)

    warn "no decision: #{e.message}"
    @again = now + @ask_again
    otherwise
  end

  # Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen.
  def unavailable?(error)
    return true if CANNOT_DECIDE.match?(error.message)

    error.is_a?(Redis::BaseConnectionError) && !SET_UP.match?(error.message)
  end

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
end
