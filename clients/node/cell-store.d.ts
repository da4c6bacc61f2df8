/** Sends a command to the node of a key, and resolves to the reply. */
export type Send = (key: string, args: string[]) => Promise<unknown>;

/** A client of node-redis or ioredis, for one server or for a cluster, or a function that sends by another client. */
export type Client = Send | { sendCommand(...args: any[]): Promise<any> } | { call(...args: any[]): Promise<any> };

export interface Options {
  client: Client;
  /** The prefix of keys: a different one for each limiter, if keys could be equal. The default is `limit:`. */
  prefix?: string;
}

export interface CellStoreOptions extends Options {
  /** Receives the error of a hit that could not be given back. The default writes it to the console. */
  onError?: (error: unknown) => void;
}

/** A store for express-rate-limit 6 to 8. */
export class CellStore {
  constructor(options: CellStoreOptions);
  readonly prefix: string;
  readonly localKeys: false;
  init(options: { windowMs: number }): void;
  get(key: string): Promise<{ totalHits: number; resetTime: Date } | undefined>;
  increment(key: string): Promise<{ totalHits: number; resetTime: Date }>;
  decrement(key: string): Promise<void>;
  resetKey(key: string): Promise<void>;
}

export interface FastifyStore {
  incr(
    key: string,
    callback: (error: Error | null, result: { current: number; ttl: number } | null) => void,
    timeWindow?: number,
    max?: number,
  ): void;
  child(routeOptions: object): FastifyStore;
}

/** A class of stores for @fastify/rate-limit 9 and 10. */
export function fastifyStore(options: Options): new (options?: object) => FastifyStore;
