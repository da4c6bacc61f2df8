// CL.THROTTLE with node-redis. Arguments: URL of the server, URL of a server that is down.
'use strict';
const { createClient, ErrorReply } = require('redis');
const { setTimeout: sleep } = require('node:timers/promises');

const TIMEOUT = 500; // milliseconds: a limiter that does not answer soon is no help

// The error replies of a server that does not decide now.
const CANNOT_DECIDE =
  /^(BUSY|CLUSTERDOWN|LOADING|MASTERDOWN|MISCONF|NOREPLICAS|OOM|READONLY|TRYAGAIN|ERR max number of clients) /;

// Whether no server decides now. All other errors are errors of the call or of the setup: they must be seen.
function isUnavailable(error) {
  if (error instanceof ErrorReply) return CANNOT_DECIDE.test(error.message);
  return !/CERT|SELF_SIGNED|ISSUER|SIGNATURE|ALTNAME/.test(error.code);
}

// The result of the promise, or an error if it takes too long.
function within(milliseconds, promise) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`no answer within ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

class Limiter {
  constructor(url, maxBurst, count, period) {
    // The client reconnects in the background. Until then, calls fail at once instead of being queued.
    this.client = createClient({
      url,
      disableOfflineQueue: true,
      socket: { connectTimeout: TIMEOUT, reconnectStrategy: (attempt) => Math.min(attempt * 50, 1000) },
    });
    this.client.on('error', (error) => {
      console.error(`redis: ${error.code ?? error.message}`);
      this.lastError = error;
    });
    this.limit = [maxBurst, count, period];
  }

  // Waits for the first connection, but not forever.
  async connect() {
    const connected = this.client.connect();
    connected.catch(() => {}); // reported by the listener above
    await within(TIMEOUT, connected).catch(() => {});
    return this;
  }

  async throttle(key, quantity = 1) {
    const call = ['CL.THROTTLE', key, ...this.limit, quantity].map(String);
    const reply = await within(TIMEOUT, this.client.sendCommand(call)).catch((error) => {
      throw this.client.isReady ? error : (this.lastError ?? error); // why there is no connection
    });
    const [limited, limit, remaining, retryAfter, resetAfter] = reply;
    return { limited: limited === 1, limit, remaining, retryAfter, resetAfter };
  }
}

// Handles an HTTP request: returns the status and headers of its response.
async function handle(limiter, key, failOpen) {
  try {
    const { limited, retryAfter } = await limiter.throttle(key);
    return limited ? { status: 429, headers: { 'Retry-After': String(retryAfter) } } : { status: 200, headers: {} };
  } catch (error) {
    if (!isUnavailable(error)) {
      console.error(`${key}: ${error.message}`);
      return { status: 500, headers: {} };
    }
    console.error(`no decision on ${key}: ${error.message}`);
    return { status: failOpen ? 200 : 503, headers: {} };
  }
}

async function main() {
  const [url = 'redis://127.0.0.1:6379', urlDown = 'redis://127.0.0.1:1'] = process.argv.slice(2);
  const key = 'example:node';
  const limiter = await new Limiter(url, 2, 30, 60).connect(); // 3 at once, then one every 2 seconds
  await limiter.client.del(key);
  for (let i = 0; i < 4; i++) {
    const d = await limiter.throttle(key);
    console.log(
      `${d.limited ? 'refused' : 'admitted'}: limit ${d.limit}, remaining ${d.remaining},` +
        ` retry after ${d.retryAfter}, reset after ${d.resetAfter}`,
    );
  }
  const { status, headers } = await handle(limiter, key, false);
  console.log(`a request now: ${status}, Retry-After: ${headers['Retry-After']}`);
  await sleep(headers['Retry-After'] * 1000);
  console.log(`a request after the wait: ${(await handle(limiter, key, false)).status}`);

  await limiter.client.set(key, 'of another type');
  console.log(`an error of the call, fail open: ${(await handle(limiter, key, true)).status}`);
  await limiter.client.del(key);

  const down = await new Limiter(urlDown, 2, 30, 60).connect(); // nothing listens there
  console.log(`server down, fail open: ${(await handle(down, key, true)).status}`);
  console.log(`server down, fail closed: ${(await handle(down, key, false)).status}`);
  for (const { client } of [limiter, down]) await client.disconnect().catch(() => {});
}

main();
