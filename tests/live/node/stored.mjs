// Stores answers through the proxy (its /v1 address is the argument), then reads, changes and
// deletes them with openai-node; prints one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const { completions } = client.chat;
const question = (n) => ({
  model: "tiny",
  temperature: 0,
  messages: [{ role: "user", content: `Say hello ${n}.` }],
  store: true,
  metadata: { topic: n % 2 ? "odd" : "even", "a.b[c]": "x & y" },
});

const created = [];
for (let n = 0; n < 4; n += 1) {
  created.push(await completions.create(question(n)));
}
const chunks = [];
for await (const chunk of await completions.create({ ...question(4), stream: true })) {
  chunks.push(chunk);
}
await completions.create({ ...question(5), store: false });

const ids = async (query) => {
  const found = [];
  for await (const one of completions.list({ limit: 2, ...query })) found.push(one.id);
  return found;
};
const listed = {
  asc: await ids({}),
  desc: await ids({ order: "desc" }),
  odd: await ids({ metadata: { topic: "odd", "a.b[c]": "x & y" } }),
  model: await ids({ model: "other" }),
};

const first = created[0].id;
const retrieved = await completions.retrieve(first);
const updated = await completions.update(first, { metadata: { topic: "new" } });
listed.updated = await ids({ metadata: { topic: "new" } });

const messages = [];
const asked = [0, 1, 2].map((n) => ({ role: "user", content: `Message ${n}.` }));
const long = await completions.create({ ...question(6), messages: asked });
for await (const one of completions.messages.list(long.id, { limit: 1, order: "desc" })) {
  messages.push(one);
}

const deleted = await completions.delete(first);
const refused = [];
const failing = [
  () => completions.retrieve(first),
  () => completions.list({ limit: 101 }),
  () => completions.list({ after: first }),
  () => completions.update(long.id, { metadata: { key: "v".repeat(513) } }),
];
for (const ask of failing) {
  try {
    await ask();
  } catch (error) {
    refused.push({ name: error.constructor.name, status: error.status, param: error.param });
  }
}

console.log(
  JSON.stringify({ created, chunks, listed, retrieved, updated, messages, deleted, refused, long }),
);
