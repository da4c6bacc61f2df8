// A store on the Redis module redis-cell for express-rate-limit, and one for @fastify/rate-limit. No dependency.
'use strict';

// The middleware compares the hits with its own limit, which may differ from request to request. So the store counts
// under a limit that is never reached.
const LIMIT = '1000000000000';

/** A function that sends a command by a client of node-redis or ioredis, for one server or for a cluster. */
function sender(client) {
  if (typeof client === 'function') return client;
  if (typeof client?.call === 'function') return (key, args) => client.call(...args); // ioredis
  if (typeof client?.getMasters === 'function' || Array.isArray(client?.masters)) {
    return (key, args) => client.sendCommand(key, false, args); // a cluster of node-redis
  }
  if (typeof client?.sendCommand === 'function') return (key, args) => client.sendCommand(args);
  throw new TypeError('a client of node-redis or ioredis is needed, or a function (key, args) => Promise');
}

/** The error that a user understands without the commands of the server. */
function explained(error, key) {
  const text = String(error?.message);
  const because = (message) => Object.assign(new Error(message, { cause: error }), { code: error.code });
  if (/^(ERR )?unknown command/.test(text)) return because('the server has not loaded redis-cell');
  if (/WRONGTYPE|does not hold this limiter's state/.test(text)) return because(`${text} (key: ${key})`);
  return error;
}

/** Hits in windows of a time, which begin with the first hit of a key: CL.FIXED. */
class Counter {
  constructor(client, prefix) {
    const send = sender(client);
    this.send = (key, args) =>
      Promise.resolve(send(key, args)).catch((error) => {
        throw explained(error, key);
      });
    this.prefix = prefix;
  }

  /** Counts `quantity` hits, 0 to look: the hits of the window, and the milliseconds until its end. */
  async hit(key, windowMs, quantity) {
    const name = this.prefix + key;
    const reply = await this.send(name, ['CL.FIXED', name, LIMIT, String(windowMs), String(quantity), 'MS']);
    const [, limit, remaining, , resetAfter] = reply.map(Number);
    return { hits: limit - remaining, resetAfter };
  }

  /** Takes a hit back, if the window has one. */
  async back(key, windowMs) {
    const name = this.prefix + key;
    await this.send(name, ['CL.MSETTLE', name, 'FIXED', LIMIT, String(windowMs), '-1', 'MS']);
  }

  async forget(key) {
    await this.send(this.prefix + key, ['DEL', this.prefix + key]);
  }
}

function whole(windowMs) {
  const window = Math.ceil(Number(windowMs));
  if (!(window >= 1)) throw new RangeError(`the window must be at least 1 ms, not ${windowMs}`);
  return window;
}

/** A store for express-rate-limit 6 to 8: `rateLimit({ store: new CellStore({ client }), ... })`. */
class CellStore {
  constructor({ client, prefix = 'limit:', onError = (error) => console.error(error) } = {}) {
    this.prefix = prefix; // of each limiter its own, if keys could be equal
    this.localKeys = false; // all processes share the keys
    this.onError = onError;
    this.counter = new Counter(client, prefix);
  }

  init({ windowMs }) {
    this.window = whole(windowMs);
  }

  get windowMs() {
    if (this.window === undefined) throw new Error('no window yet: call init({ windowMs }), as rateLimit does');
    return this.window;
  }

  async get(key) {
    const { hits, resetAfter } = await this.counter.hit(key, this.windowMs, 0);
    return hits === 0 ? undefined : { totalHits: hits, resetTime: new Date(Date.now() + resetAfter) };
  }

  async increment(key) {
    const { hits, resetAfter } = await this.counter.hit(key, this.windowMs, 1);
    return { totalHits: hits, resetTime: new Date(Date.now() + resetAfter) };
  }

  /** Never rejects: the middleware waits in a detached promise, where a rejection would end the process. */
  async decrement(key) {
    try {
      await this.counter.back(key, this.windowMs);
    } catch (error) {
      try {
        await this.onError(error);
      } catch (another) {
        console.error(another);
      }
    }
  }

  async resetKey(key) {
    await this.counter.forget(key);
  }
}

/** A class of stores for @fastify/rate-limit 9 and 10: `{ store: fastifyStore({ client }), ... }`. */
function fastifyStore({ client, prefix = 'limit:' } = {}) {
  return class FastifyCellStore {
    constructor(options = {}) {
      this.options = options;
      const { method = '', url = '' } = options.routeInfo ?? {};
      this.counter = new Counter(client, `${prefix}${method}${url}${url && ':'}`);
    }

    incr(key, callback, timeWindow = this.options.timeWindow) {
      const counted = Promise.resolve().then(() => this.counter.hit(key, whole(timeWindow), 1));
      counted.then(
        ({ hits, resetAfter }) => callback(null, { current: hits, ttl: resetAfter }),
        (error) => callback(error, null),
      );
    }

    child(routeOptions) {
      return new FastifyCellStore({ ...this.options, ...routeOptions });
    }
  };
}

module.exports = { CellStore, fastifyStore };
