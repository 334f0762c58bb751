// Plays the sequence with one of the official clients and prints, one JSON
// object a line, what came over the wire for each step.
//
//   node drive.mjs legacy|modern PLAN.json
//
// The plan names the servers; with a proxy in it, one connection to that
// serves all of them, and names carry "<server>__".
import { readFileSync } from 'node:fs';
import { connect } from './clients.mjs';
import { sequence } from './sequence.mjs';

const [generation, planFile] = process.argv.slice(2);
const plan = JSON.parse(readFileSync(planFile, 'utf8'));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const print = (step, kind, value) => process.stdout.write(JSON.stringify({ step, kind, value }) + '\n');

async function until(ready, what, ms = 30000) {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(20)) {
    const value = await ready();
    if (value) return value;
  }
  throw new Error(`${what}: not within ${ms} ms`);
}

const isAnswer = (m) => m.id !== undefined && m.method === undefined;
const inputs = (m) => Object.values(m.result?.inputRequests ?? {});

// play runs one step and prints the final answer as raw text, and what was
// asked or told meanwhile.
async function play(peer, label, step, prefix, modern) {
  const { client, transport, tool } = peer;
  const from = transport.lines.length;
  const messages = () => transport.lines.slice(from).filter((l) => l.trim()).map((raw) => ({ raw, ...JSON.parse(raw) }));
  const options = { timeout: 60000, ...(step.progress ? { onprogress: () => {} } : {}) };
  const name = prefix + (step.name ?? '');
  const meta = modern && peer.level ? { _meta: { 'io.modelcontextprotocol/logLevel': peer.level } } : {};
  const actions = {
    tool: () => tool({ name, arguments: step.args, ...meta }, options),
    prompt: () => client.getPrompt({ name, arguments: step.args }, options),
    read: () => client.readResource({ uri: step.uri }, options),
    complete: () => client.complete({ ...step, kind: undefined,
      ref: step.ref.name ? { ...step.ref, name: prefix + step.ref.name } : step.ref }, options),
    level: async () => {
      peer.level = step.level;
      if (!modern) await client.setLoggingLevel(step.level);
    },
    subscribe: async () => {
      if (modern) peer.subscription = await client.listen({ resourceSubscriptions: [step.uri] });
      else await client.subscribeResource({ uri: step.uri });
    },
    unsubscribe: () => modern ? peer.subscription.close() : client.unsubscribeResource({ uri: step.uri }),
  };
  let failure = null;
  await actions[step.kind]().catch((e) => { failure = String(e.message).slice(0, 200); });
  if (step.waitFor) {
    const told = await until(() => messages().find((m) => m.method === step.waitFor), `${label}: ${step.waitFor}`, 15000);
    print(label, step.waitFor, JSON.stringify(told.params));
  }
  const all = messages();
  const answer = all.findLast((m) => isAnswer(m) && m.result?.resultType !== 'input_required');
  for (const m of all) {
    if (m.method === 'notifications/progress') print(label, 'progress', JSON.stringify(m.params));
    const asked = m.method && m.id !== undefined && m.method !== 'ping' ? [m] : inputs(m);
    for (const q of asked) print(label, q.method, JSON.stringify(q.params ?? {}));
  }
  if (!['level', 'subscribe', 'unsubscribe'].includes(step.kind)) print(label, 'answer', answer?.raw ?? null);
  print(label, 'client', failure === null ? 'ok' : 'refused');
}

async function lists(peer, label) {
  const { client, transport } = peer;
  const can = client.getServerCapabilities();
  const calls = { 'tools/list': can.tools && client.listTools, 'resources/list': can.resources && client.listResources,
    'resources/templates/list': can.resources && client.listResourceTemplates, 'prompts/list': can.prompts && client.listPrompts };
  for (const [method, call] of Object.entries(calls)) {
    if (!call) continue;
    const from = transport.lines.length;
    await call.call(client, undefined, { cacheMode: 'refresh' });
    const answer = transport.lines.slice(from).find((l) => l.trim() && isAnswer(JSON.parse(l)));
    print(`${label} ${method}`, 'answer', answer);
  }
}

async function run(peer, steps, server, prefix, modern) {
  const seen = {};
  for (const step of steps) {
    const what = `${server} ${step.kind} ${step.name ?? step.uri ?? step.ref?.name ?? step.ref?.uri ?? step.level}`;
    seen[what] = (seen[what] ?? 0) + 1;
    await play(peer, `${what} #${seen[what]}`, step, prefix, modern);
  }
}

const steps = sequence(plan.dir);
if (plan.proxy) {
  const peer = await connect(generation, plan.proxy, plan.dir);
  const names = async () => (await peer.client.listTools(undefined, { cacheMode: 'refresh' })).tools.map((t) => t.name);
  await until(async () => { const have = await names(); return plan.expect.every((n) => have.includes(n)); }, 'the complete list of tools', 60000);
  await sleep(800); // everything asks for the roots 350 ms after its start
  await lists(peer, '*');
  for (const server of Object.keys(plan.servers)) await run(peer, steps[server], server, `${server}__`, generation === 'modern');
  await peer.client.close();
} else {
  for (const [server, how] of Object.entries(plan.servers)) {
    const peer = await connect(generation, how, plan.dir);
    await sleep(800);
    await lists(peer, server);
    await run(peer, steps[server], server, '', false);
    await peer.client.close();
  }
}
process.exit(0);
