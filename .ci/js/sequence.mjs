// The scripted sequence that every run plays, one server at a time. It is a
// list of steps; drive.mjs plays them and prints what came over the wire.

const uri = (id) => `demo://resource/dynamic/text/${id}`;
const gzip = { name: 'a.txt.gz', data: 'data:text/plain;base64,aGVsbG8=' };

const tool = (name, args = {}, options = {}) => ({ kind: 'tool', name, args, ...options });
const prompt = (name, args) => ({ kind: 'prompt', name, args });
const read = (uri) => ({ kind: 'read', uri });
const complete = (ref, argument, context) => ({ kind: 'complete', ref, argument, context });

const everything = [
  tool('echo', { message: 'héllo 你好 😀 <&>' }),
  tool('get-sum', { a: 1.5, b: 2 }),
  tool('get-annotated-message', { messageType: 'error', includeImage: true }),
  tool('get-annotated-message', { messageType: 'debug' }),
  tool('get-env'),
  tool('get-resource-links', { count: 4 }),
  tool('get-resource-reference', { resourceType: 'Text', resourceId: 2 }),
  tool('get-resource-reference', { resourceType: 'Text', resourceId: -1 }),
  tool('get-structured-content', { location: 'Chicago' }),
  tool('get-tiny-image'),
  tool('get-roots-list'),
  tool('gzip-file-as-resource', { ...gzip, outputType: 'resource' }),
  tool('gzip-file-as-resource', { ...gzip, outputType: 'resourceLink' }),
  read('demo://resource/session/a.txt.gz'),
  tool('trigger-long-running-operation', { duration: 0.3, steps: 3 }, { progress: true }),
  tool('trigger-sampling-request', { prompt: 'Say hello.', maxTokens: 20 }),
  tool('trigger-elicitation-request'),
  tool('trigger-url-elicitation', { url: 'https://example.com/', message: 'Open it.', elicitationId: 'e-1' }),
  tool('trigger-url-elicitation', { url: 'https://example.com/', message: 'Open it.', elicitationId: 'e-2', errorPath: true }),
  tool('echo', { wrong: 1 }),
  { kind: 'level', level: 'debug' },
  tool('toggle-simulated-logging', {}, { waitFor: 'notifications/message' }),
  tool('toggle-simulated-logging'),
  { kind: 'subscribe', uri: uri(7) },
  tool('toggle-subscriber-updates', {}, { waitFor: 'notifications/resources/updated' }),
  tool('toggle-subscriber-updates'),
  { kind: 'unsubscribe', uri: uri(7) },
  read(uri(1)),
  read('demo://resource/dynamic/blob/2'),
  read('demo://resource/static/document/features.md'),
  read('demo://resource/nothing'),
  prompt('simple-prompt'),
  prompt('args-prompt', { city: 'Oslo', state: 'none' }),
  prompt('completable-prompt', { department: 'Sales', name: 'Eve' }),
  prompt('resource-prompt', { resourceType: 'Text', resourceId: '3' }),
  complete({ type: 'ref/prompt', name: 'completable-prompt' }, { name: 'department', value: 'S' }),
  complete({ type: 'ref/prompt', name: 'completable-prompt' }, { name: 'name', value: '' }, { arguments: { department: 'Sales' } }),
  complete({ type: 'ref/resource', uri: 'demo://resource/dynamic/text/{resourceId}' }, { name: 'resourceId', value: '1' }),
];

const filesystem = (dir) => [
  tool('list_allowed_directories'),
  tool('write_file', { path: `${dir}/a.txt`, content: 'one\ntwo\nthree\n' }),
  tool('create_directory', { path: `${dir}/sub` }),
  tool('read_file', { path: `${dir}/a.txt` }),
  tool('read_text_file', { path: `${dir}/a.txt`, head: 1 }),
  tool('read_media_file', { path: `${dir}/pixel.png` }),
  tool('read_multiple_files', { paths: [`${dir}/a.txt`, `${dir}/none`] }),
  tool('edit_file', { path: `${dir}/a.txt`, edits: [{ oldText: 'two', newText: 'zwei' }] }),
  tool('list_directory', { path: dir }),
  tool('list_directory_with_sizes', { path: dir }),
  tool('directory_tree', { path: dir }),
  tool('move_file', { source: `${dir}/a.txt`, destination: `${dir}/sub/b.txt` }),
  tool('search_files', { path: dir, pattern: '**/*.txt' }),
  tool('get_file_info', { path: `${dir}/sub/b.txt` }),
  tool('read_file', { path: '/etc/passwd' }),
];

const memory = [
  tool('create_entities', { entities: [{ name: 'Ann', entityType: 'person', observations: ['likes tea'] }, { name: 'Bo', entityType: 'person', observations: [] }] }),
  tool('create_relations', { relations: [{ from: 'Ann', to: 'Bo', relationType: 'knows' }] }),
  tool('add_observations', { observations: [{ entityName: 'Bo', contents: ['likes 咖啡'] }] }),
  tool('read_graph'),
  tool('search_nodes', { query: 'tea' }),
  tool('open_nodes', { names: ['Bo'] }),
  tool('delete_observations', { deletions: [{ entityName: 'Bo', observations: ['likes 咖啡'] }] }),
  tool('delete_relations', { relations: [{ from: 'Ann', to: 'Bo', relationType: 'knows' }] }),
  tool('delete_entities', { entityNames: ['Bo'] }),
  read('memory://knowledge-graph'),
  tool('create_entities', { entities: 'not a list' }),
];

const thinking = [
  tool('sequentialthinking', { thought: 'First', nextThoughtNeeded: true, thoughtNumber: 1, totalThoughts: 2 }),
  tool('sequentialthinking', { thought: 'Second', nextThoughtNeeded: false, thoughtNumber: 2, totalThoughts: 2 }),
];

/** The steps of each server, by its name in the configuration. */
export const sequence = (dir) => ({ everything, filesystem: filesystem(dir), memory, thinking });
