// The stores, with the real express-rate-limit, express and node-redis, and a server with the module: REDIS_URL.
'use strict';
const assert = require('node:assert');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { after, before, beforeEach, test } = require('node:test');
const express = require('express');
const { rateLimit } = require('express-rate-limit');
const redis = require('redis');
const typescript = require('typescript');
const { CellStore, fastifyStore } = require('./cell-store.js');

const WINDOW = 60_000;
let client;

before(async () => {
  client = redis.createClient({ url: process.env.REDIS_URL });
  client.on('error', () => {});
  await client.connect();
});
beforeEach(() => client.flushAll());
after(() => client.quit());

function store(windowMs = WINDOW, options = {}) {
  const made = new CellStore({ client, ...options });
  made.init({ windowMs });
  return made;
}

/** Runs a function with the address of an application behind a limiter. */
async function serving(options, use, status = () => 200) {
  const application = express();
  const errors = [];
  const usual = { windowMs: WINDOW, limit: 3, standardHeaders: 'draft-7', keyGenerator: () => 'client' };
  application.use(rateLimit({ ...usual, ...options }));
  application.get('/', (request, response) => response.status(status()).send('answer'));
  application.use((error, request, response, next) => {
    errors.push(error);
    response.status(500).send('error');
  });
  const server = await new Promise((resolve) => {
    const listening = application.listen(0, '127.0.0.1', () => resolve(listening));
  });
  try {
    await use(`http://127.0.0.1:${server.address().port}/`, errors);
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}

const statuses = async (url, count) =>
  (await Promise.all(Array.from({ length: count }, () => fetch(url)))).map((response) => response.status).sort();

test('hits are counted from 1, and the window ends when it should', async () => {
  const limiter = store();
  for (let hits = 1; hits <= 3; hits++) {
    const { totalHits, resetTime } = await limiter.increment('a');
    assert.strictEqual(totalHits, hits);
    assert(resetTime instanceof Date);
    const left = resetTime - Date.now();
    assert(left > WINDOW - 10_000 && left <= WINDOW, `${left}`);
  }
  assert.strictEqual((await limiter.increment('b')).totalHits, 1);
});

test('the key expires with its window, and later hits do not move its end', async () => {
  const limiter = store();
  await limiter.increment('a');
  const end = await client.pExpireTime('limit:a');
  await limiter.increment('a');
  assert.strictEqual(await client.pExpireTime('limit:a'), end);
  assert.strictEqual(await client.get('limit:a'), '2');
});

test('a window that is over is forgotten', async () => {
  const limiter = store(50);
  await limiter.increment('a');
  await limiter.increment('a');
  while (await client.exists('limit:a')) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.strictEqual((await limiter.increment('a')).totalHits, 1);
});

test('get looks and counts nothing', async () => {
  const limiter = store();
  assert.strictEqual(await limiter.get('a'), undefined);
  assert.strictEqual(await client.exists('limit:a'), 0);
  await limiter.increment('a');
  assert.strictEqual((await limiter.get('a')).totalHits, 1);
  assert.strictEqual((await limiter.get('a')).totalHits, 1);
});

test('decrement takes a hit back, and never one that was not there', async () => {
  const limiter = store();
  await limiter.increment('a');
  await limiter.increment('a');
  await limiter.decrement('a');
  assert.strictEqual((await limiter.get('a')).totalHits, 1);
  await limiter.decrement('a');
  await limiter.decrement('a');
  assert.strictEqual(await limiter.get('a'), undefined);
  assert.strictEqual((await limiter.increment('a')).totalHits, 1);
  const yearly = store(365 * 86_400_000, { prefix: 'yearly:' });
  await yearly.increment('a');
  await yearly.decrement('a');
  assert.strictEqual(await client.exists('yearly:a'), 0);
});

test('resetKey forgets the hits of one key', async () => {
  const limiter = store();
  await limiter.increment('a');
  await limiter.increment('b');
  await limiter.resetKey('a');
  assert.strictEqual((await limiter.increment('a')).totalHits, 1);
  assert.strictEqual((await limiter.increment('b')).totalHits, 2);
});

test('two processes share the hits, and two prefixes do not', async () => {
  await store().increment('a');
  assert.strictEqual((await store().increment('a')).totalHits, 2);
  assert.strictEqual((await store(WINDOW, { prefix: 'other:' }).increment('a')).totalHits, 1);
});

test('a window that is no time is an error, and so is a client that cannot send', () => {
  for (const windowMs of [0, -1, NaN]) assert.throws(() => store(windowMs), RangeError);
  for (const options of [{ client: {} }, { client: 5 }, {}, undefined]) {
    assert.throws(() => new CellStore(options), /a client of node-redis or ioredis is needed/);
  }
});

/** Runs a function with a client of a server that has not loaded the module. */
async function withoutModule(use) {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'redis-cell-'));
  const socket = path.join(folder, 'socket');
  const words = ['--port', '0', '--unixsocket', socket, '--dir', folder, '--save', ''];
  const server = spawn(process.env.REDIS_CELL_SERVER, words, { stdio: 'ignore' });
  const bare = redis.createClient({ socket: { path: socket, reconnectStrategy: () => 20 } });
  bare.on('error', () => {});
  try {
    await bare.connect();
    await use(bare);
  } finally {
    await bare.disconnect().catch(() => {});
    server.kill();
    await once(server, 'exit');
    fs.rmSync(folder, { recursive: true });
  }
}

test('errors say what to do', async () => {
  await client.rPush('limit:a', 'x');
  await assert.rejects(store().increment('a'), /^Error: WRONGTYPE .*limit:a/);
  await assert.rejects(new CellStore({ client }).increment('a'), /init\(\{ windowMs \}\)/);
});

test('the messages are those of the page', async () => {
  const page = fs.readFileSync(path.join(__dirname, '../../docs/errors.md'), 'utf8');
  const { host } = new URL(process.env.REDIS_URL);
  for (const words of ['ann on >secret ~limit:* +@all -cl.fixed', 'bob on >secret ~other* +@all']) {
    await client.sendCommand(['ACL', 'SETUSER', ...words.split(' ')]);
  }
  await client.rPush('limit:user123', 'x');
  const hit = (to) => store(WINDOW, { client: to }).increment('user123');
  const at = (url) => async () => {
    const other = redis.createClient({ url, socket: { reconnectStrategy: false } });
    other.on('error', () => {});
    await other.connect();
    await hit(other).finally(() => other.disconnect());
  };
  const mistakes = [
    () => withoutModule(hit),
    () => hit(client),
    () => client.set('limit:user123', 'x').then(() => hit(client)),
    at(`redis://ann:secret@${host}`),
    at(`redis://bob:secret@${host}`),
    at(`redis://ann:wrong@${host}`),
    async () => {
      await client.configSet('requirepass', 'secret');
      await at(`redis://${host}`)().finally(() => client.configSet('requirepass', ''));
    },
    at('redis://127.0.0.1:1'),
    async () => {
      const lost = redis.createClient({ url: 'redis://127.0.0.1:1', disableOfflineQueue: true });
      lost.on('error', () => {});
      lost.connect().catch(() => {}); // it never ends, as in README.md
      await hit(lost).finally(() => lost.disconnect());
    },
    at('http://127.0.0.1'),
    at('redis://127.0.0.1/abc'),
  ];
  for (const mistake of mistakes) {
    const error = await mistake().then(() => assert.fail('it is none'), (error) => error);
    // From 7.2 on, the server names the user.
    const said = error.message.replace(/User (ann|bob)/, 'this user').replace('cl.fixed', 'cl.throttle');
    const quoted = said.replace(/^NOPERM /, '').replace(/:1$/, ':6379');
    assert.ok(page.includes('`' + quoted + '`'), `the page has not: ${said}`);
  }
  await client.sendCommand(['ACL', 'DELUSER', 'ann', 'bob']);
});

test('clients of ioredis, of clusters, and functions send', async () => {
  const routed = [];
  const send = (key, args) => {
    routed.push(key);
    return client.sendCommand(args);
  };
  const ways = [
    { call: (...args) => send(args[1], args) },
    { masters: [], sendCommand: (key, readOnly, args) => send(key, args) },
    send,
  ];
  for (const [index, way] of ways.entries()) {
    const limiter = store(WINDOW, { client: way });
    assert.strictEqual((await limiter.increment('a')).totalHits, index + 1);
  }
  assert.deepStrictEqual(routed, Array(3).fill('limit:a'));
});

test('the middleware admits exactly the limit', async () => {
  await serving({ store: new CellStore({ client }) }, async (url, errors) => {
    assert.deepStrictEqual(await statuses(url, 20), [...Array(3).fill(200), ...Array(17).fill(429)]);
    const refused = await fetch(url);
    assert.match(refused.headers.get('ratelimit'), /limit=3, remaining=0, reset=(60|5\d)/);
    assert(Number(refused.headers.get('retry-after')) > 50);
    assert.deepStrictEqual(errors, []);
  });
});

test('skipSuccessfulRequests gives hits back', async () => {
  let status = 200;
  await serving(
    { store: new CellStore({ client }), skipSuccessfulRequests: true },
    async (url) => {
      for (let request = 0; request < 5; request++) {
        assert.strictEqual((await fetch(url)).status, 200);
        while (await client.exists('limit:client')) await new Promise((resolve) => setTimeout(resolve, 5));
      }
      status = 404;
      assert.deepStrictEqual(await statuses(url, 4), [404, 404, 404, 429]);
    },
    () => status,
  );
});

test('a server that goes away before a hit is given back ends nothing', async () => {
  for (const [option, status] of [['skipSuccessfulRequests', 200], ['skipFailedRequests', 404]]) {
    const own = client.duplicate();
    own.on('error', () => {});
    await own.connect();
    const gone = () => {
      own.disconnect();
      return status;
    };
    let onError;
    const reported = new Promise((resolve) => { onError = resolve; });
    const limiter = new CellStore({ client: own, onError });
    await serving(
      { store: limiter, [option]: true },
      async (url) => {
        assert.strictEqual((await fetch(url)).status, status);
        assert.match((await reported).message, /closed/);
      },
      gone,
    );
  }
});

test('no hit that cannot be given back ends the process, whatever onError does', async (t) => {
  const printed = t.mock.method(console, 'error', () => {});
  const gone = () => Promise.reject(new Error('gone'));
  const thrown = () => { throw new Error('thrown'); };
  for (const onError of [thrown, () => Promise.reject(new Error('rejected'))]) {
    await store(WINDOW, { client: gone, onError }).decrement('a');
    await new CellStore({ client: gone, onError }).decrement('a'); // without init
  }
  assert.deepStrictEqual(printed.mock.calls.map((call) => call.arguments[0].message).sort(),
    ['rejected', 'rejected', 'thrown', 'thrown']);
});

test('without a server requests pass or are errors, as passOnStoreError says', async () => {
  const gone = redis.createClient({ socket: { port: 1, reconnectStrategy: false }, disableOfflineQueue: true });
  gone.on('error', () => {});
  for (const [passOnStoreError, status] of [[true, 200], [false, 500]]) {
    await serving({ store: new CellStore({ client: gone }), passOnStoreError }, async (url) => {
      assert.strictEqual((await fetch(url)).status, status);
    });
  }
});

test('the store for fastify counts as its interface says', async () => {
  const Store = fastifyStore({ client });
  const global = new Store({ timeWindow: WINDOW });
  const incr = (made, ...more) =>
    new Promise((resolve, reject) => {
      made.incr('a', (error, result) => (error ? reject(error) : resolve(result)), ...more);
    });
  assert.strictEqual((await incr(global, WINDOW, 3)).current, 1);
  const second = await incr(global);
  assert.strictEqual(second.current, 2);
  assert(second.ttl > WINDOW - 10_000 && second.ttl <= WINDOW);
  const route = global.child({ routeInfo: { method: 'GET', url: '/x' } });
  assert.strictEqual((await incr(route, WINDOW, 3)).current, 1);
  assert.strictEqual((await incr(global.child({}), WINDOW, 3)).current, 3);
  const own = await incr(new Store({ timeWindow: WINDOW, routeInfo: { method: 'GET', url: '/y' } }));
  assert(own.current === 1 && own.ttl > WINDOW - 10_000); // without a window in the call, that of the options
  await assert.rejects(incr(global, 0), RangeError);
});

test('the types compile, also as those of a store of the library, and reject what is wrong', () => {
  const libraries = path.dirname(path.dirname(require.resolve('express')));
  const program = typescript.createProgram([path.join(__dirname, 'typed.ts')], {
    strict: true,
    noEmit: true,
    types: [],
    skipLibCheck: true, // those of express are not there
    target: typescript.ScriptTarget.ES2022,
    module: typescript.ModuleKind.ESNext,
    moduleResolution: typescript.ModuleResolutionKind.Bundler,
    paths: { '*': [path.join(libraries, '*')] },
  });
  const errors = typescript.getPreEmitDiagnostics(program);
  const texts = errors.map(({ messageText }) => typescript.flattenDiagnosticMessageText(messageText, '\n'));
  assert.deepStrictEqual(texts, []);
  const checked = program.getSourceFiles().map(({ fileName }) => path.basename(fileName));
  assert(checked.includes('cell-store.d.ts') && checked.includes('typed.ts'));
});

test('the program of the page limits', async () => {
  const [, program] = /```js\n([^]*?)```/.exec(fs.readFileSync(path.join(__dirname, 'README.md'), 'utf8'));
  const code = program.replace('redis://localhost:6379', process.env.REDIS_URL).replace('listen(3000)', 'listen(0)');
  // A function, as Node makes of a file: `await` outside of functions is an error in both.
  const run = new Function('require', `${code}; return { server, client }`);
  const started = run((name) => require(name === 'redis-cell-store' ? './cell-store.js' : name));
  try {
    await Promise.all([once(started.server, 'listening'), once(started.client, 'ready')]);
    const url = `http://127.0.0.1:${started.server.address().port}/`;
    assert.deepStrictEqual(await statuses(url, 102), [...Array(100).fill(200), 429, 429]);
  } finally {
    started.server.closeAllConnections();
    started.server.close();
    await started.client.quit();
  }
});
