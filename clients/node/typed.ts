// What an application writes with types. test.js compiles it, and each line that must not compile says so.
import type { Store } from 'express-rate-limit';
import { CellStore, fastifyStore, type Client, type Send } from './cell-store';

const send: Send = async (key, args) => [key, ...args];
const ioredis: Client = { call: async (name: string, ...args: string[]) => [name, ...args] };
const nodeRedis: Client = { sendCommand: async (args: string[]) => args };
for (const client of [send, ioredis, nodeRedis]) new CellStore({ client, prefix: 'site:' });

const cell = new CellStore({ client: send });
const store: Store = cell;
cell.init({ windowMs: 60_000 });
cell.increment('a').then(({ totalHits, resetTime }) => totalHits + resetTime.getTime());
cell.get('a').then((hits) => hits?.totalHits);

const FastifyStore = fastifyStore({ client: send });
new FastifyStore({ timeWindow: 1000 })
  .child({})
  .incr('a', (error, result) => error ?? result?.current, 1000, 3);

// @ts-expect-error: a client is needed
new CellStore({ prefix: 'site:' });
// @ts-expect-error: this is not a client
new CellStore({ client: {} });
// @ts-expect-error: an unknown option
new CellStore({ client: send, prefx: 'site:' });
// @ts-expect-error: all keys have the prefix
cell.prefix = 'other:';
// @ts-expect-error: there may be no hits
cell.get('a').then((hits) => hits.totalHits);

export { store };
