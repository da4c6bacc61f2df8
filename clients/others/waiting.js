// What docs/clients.md says about node-redis, with a server with the module: node waiting.js URL
const assert = require('node:assert');
const redis = require('redis');

const WAIT = ['CL.BTHROTTLE', 'k', '0', '1', '3600', '1'];
const LOOK = ['CL.PEEK', 'other', '0', '1', '3600'];

async function main() {
  const client = redis.createClient({ url: process.argv[2] });
  await client.connect();
  const second = client.duplicate();
  await second.connect();
  const waiting = async () => /blocked_clients:(\d+)/.exec(await second.info('clients'))[1];

  await client.sendCommand(['CL.THROTTLE', 'k', '0', '1', '3600']);
  assert.strictEqual(await client.sendCommand([...WAIT, '0.1']), null);

  const call = client.sendCommand([...WAIT, '0']);
  for (let look = 0; (await waiting()) !== '1'; look++) {
    assert(look < 3000, 'the call does not wait');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  let replied = false;
  const later = client.sendCommand(LOOK).then((reply) => {
    replied = true;
    return reply;
  });
  assert.strictEqual((await second.sendCommand(LOOK))[0], 0, 'a second client is served');
  assert.strictEqual(await waiting(), '1');
  assert(!replied, 'later calls of the client wait behind the waiting call');

  await second.sendCommand(['CL.REFUND', 'k', '0', '1', '3600']);
  assert.strictEqual((await call)[0], 0);
  assert.strictEqual((await later)[0], 0);
  await Promise.all([client.quit(), second.quit()]);
  console.log('as docs/clients.md says');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
