// Breaks a running endpoint with its own tools, with one of the official
// clients over HTTP, and ends with an error if that is not as it should be.
//
//   node chaos.mjs legacy|modern URL
//
// The endpoint has the upstreams web, over HTTP, and local, a process, each
// with the read-only tool echo, and the scenario grumpy.
import assert from 'node:assert/strict';
import { connect } from './clients.mjs';

const [generation, url] = process.argv.slice(2);
const uri = 'agentarmor://chaos';
const { client, tool, subscribe } = await connect(generation, { url }, '/');
const call = (name, args = {}) => tool({ name, arguments: args }, { timeout: 60000 });
const mark = (result) => result._meta?.['agentarmor/call'];
const text = (result) => result.content[0].text;
const faults = async () => JSON.parse((await client.readResource({ uri }, { cacheMode: 'refresh' })).contents[0].text).active;

let updates = 0;
// told does something, and waits until the subscriber is told of an update.
async function told(what, act) {
  const before = updates;
  const result = await act();
  for (const end = Date.now() + 30000; updates === before;) {
    assert.ok(Date.now() < end, `no update of ${uri} after ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return result;
}

async function inject(args) {
  const result = await told('chaos.inject', () => call('chaos.inject', args));
  assert.ok(!result.isError, text(result));
  return result.structuredContent.injected;
}

async function clear() {
  const result = await told('chaos.clear', () => call('chaos.clear'));
  assert.equal(result.structuredContent.active, 0);
  return result.structuredContent.cleared;
}

async function works(name) {
  const result = await call(name, { text: 'hello' });
  assert.ok(!result.isError && mark(result) === undefined, JSON.stringify(result));
}

const listed = (await client.listTools()).tools.map((t) => t.name);
for (const name of ['chaos.inject', 'chaos.clear', 'chaos.list', 'web__echo', 'local__echo']) assert.ok(listed.includes(name), name);
await call('chaos.clear'); // what a run before has left
const unsubscribe = await subscribe(uri, (u) => { if (u === uri) updates++; });

// One fault, from its injection to its end.
const [fault] = await inject({ target: 'mcp/w*/echo', fault: 'error', status: 503, ttl: '10m' });
assert.deepEqual([fault.fault, fault.targets], ['error', ['mcp/web/echo']]);
const failed = await told('a hit', () => call('web__echo', { text: 'hello' }));
assert.ok(failed.isError && text(failed).includes('HTTP status 503'), JSON.stringify(failed));
assert.deepEqual([mark(failed).outcome, mark(failed).injected], ['overloaded', fault.id]);
assert.deepEqual((await faults()).map((f) => [f.id, f.calls, f.hits]), [[fault.id, 1, 1]]);
await works('local__echo');
assert.deepEqual((await clear()).map((f) => [f.id, f.hits]), [[fault.id, 1]]);
assert.deepEqual(await faults(), []);
await works('web__echo');

// A ready-made scenario: the process dies in mid-call, and its successor answers.
const [crash] = await inject({ scenario: 'server_crash', target: 'mcp/local', ttl: '10m' });
const served = await call('local__echo', { text: 'hello' });
assert.ok(!served.isError, JSON.stringify(served));
assert.deepEqual([mark(served).attempts, mark(served).injected], [2, crash.id]);
await clear();
await works('local__echo');

// A scenario of the configuration.
const [grumpy] = await inject({ scenario: 'grumpy', ttl: '10m' });
const refused = await call('web__echo', { text: 'hello' });
assert.ok(refused.isError, JSON.stringify(refused));
assert.deepEqual([text(refused), mark(refused).outcome, mark(refused).injected], ['Not today.', 'tool_error', grumpy.id]);
await clear();

// Bad input is told, and injects nothing.
for (const [args, why] of [[{ target: 'mcp/web', fault: 'hang' }, 'ttl is missing'], [{ target: 'mcp/nobody', fault: 'hang', ttl: '1m' }, 'unknown target']]) {
  const result = await call('chaos.inject', args);
  assert.ok(result.isError && text(result).includes(why), JSON.stringify(result));
}
assert.deepEqual(await faults(), []);

await unsubscribe();
await client.close();
process.stdout.write('done\n');
process.exit(0);
