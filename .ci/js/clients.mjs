// The two official TypeScript clients behind one small interface. A recorder
// keeps every raw line that a server wrote to stdout.
import { createRequire } from 'node:module';
import path from 'node:path';
import { StringDecoder } from 'node:string_decoder';

const require = createRequire(path.join(process.env.AGENTARMOR_NPM, 'package.json'));
const info = { name: 'agentarmor-test', version: '1.0.0' };
const capabilities = { sampling: {}, elicitation: { form: {}, url: {} }, roots: { listChanged: true } };

function recording(Transport) {
  return class extends Transport {
    lines = [];
    async start() {
      await super.start();
      const text = new StringDecoder('utf8');
      let rest = '';
      this._process.stdout.on('data', (chunk) => {
        const parts = (rest + text.write(chunk)).split('\n');
        rest = parts.pop();
        this.lines.push(...parts);
      });
    }
  };
}

// Answers to what servers ask of the client.
const answers = (dir) => ({
  sampling: { role: 'assistant', content: { type: 'text', text: 'Hello.' }, model: 'scripted', stopReason: 'endTurn' },
  elicitation: (params) => params.mode === 'url' ? { action: 'accept' }
    : { action: 'accept', content: { name: 'Ann', check: true, firstLine: 'Once.', integer: 42, number: 3.5 } },
  roots: { roots: [{ uri: `file://${dir}`, name: 'scratch' }] },
});

async function legacy(server, dir) {
  const { Client } = require('@modelcontextprotocol/sdk/client/index.js');
  const { StdioClientTransport } = require('@modelcontextprotocol/sdk/client/stdio.js');
  const { StreamableHTTPClientTransport } = require('@modelcontextprotocol/sdk/client/streamableHttp.js');
  const types = require('@modelcontextprotocol/sdk/types.js');
  const transport = server.url ? new StreamableHTTPClientTransport(new URL(server.url))
    : new (recording(StdioClientTransport))({ ...server, stderr: 'ignore' });
  const client = new Client(info, { capabilities });
  const answer = answers(dir);
  client.setRequestHandler(types.CreateMessageRequestSchema, async () => answer.sampling);
  client.setRequestHandler(types.ElicitRequestSchema, async (r) => answer.elicitation(r.params));
  client.setRequestHandler(types.ListRootsRequestSchema, async () => answer.roots);
  await client.connect(transport);
  return {
    client, transport,
    tool: (params, options) => client.callTool(params, undefined, options),
    subscribe: async (uri, heard) => {
      client.setNotificationHandler(types.ResourceUpdatedNotificationSchema, (n) => heard(n.params.uri));
      await client.subscribeResource({ uri });
      return () => client.unsubscribeResource({ uri });
    },
  };
}

async function modern(server, dir) {
  const { Client, StreamableHTTPClientTransport } = require('@modelcontextprotocol/client');
  const { StdioClientTransport } = require('@modelcontextprotocol/client/stdio');
  const transport = server.url ? new StreamableHTTPClientTransport(new URL(server.url))
    : new (recording(StdioClientTransport))({ ...server, stderr: 'ignore' });
  const client = new Client(info, { capabilities, versionNegotiation: { mode: 'auto', probe: { timeoutMs: 5000 } } });
  const answer = answers(dir);
  client.setRequestHandler('sampling/createMessage', async () => answer.sampling);
  client.setRequestHandler('elicitation/create', async (r) => answer.elicitation(r.params));
  client.setRequestHandler('roots/list', async () => answer.roots);
  await client.connect(transport);
  return {
    client, transport,
    tool: (params, options) => client.callTool(params, options),
    subscribe: async (uri, heard) => {
      client.setNotificationHandler('notifications/resources/updated', (n) => heard(n.params.uri));
      const subscription = await client.listen({ resourceSubscriptions: [uri] });
      return () => subscription.close();
    },
  };
}

/** Connects the client of a generation to one server: how to start it on stdio, or its url. */
export const connect = (generation, server, dir) => (generation === 'legacy' ? legacy : modern)(server, dir);
