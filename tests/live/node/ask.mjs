// Asks the proxy (its /v1 address is the argument) through openai-node; prints one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const question = (content) => ({
  model: "tiny",
  temperature: 0,
  messages: [{ role: "user", content }],
});
const withLogprobs = { ...question("Say hello."), logprobs: true, top_logprobs: 3 };
const tools = [
  {
    type: "function",
    function: {
      name: "get_time",
      parameters: { type: "object", properties: { tz: { type: "string" } } },
    },
  },
];

const body = await client.chat.completions.create(withLogprobs);

const chunks = [];
for await (const chunk of await client.chat.completions.create({ ...withLogprobs, stream: true })) {
  chunks.push(chunk);
}

// The helper checks more: it throws on a missing role, finish_reason or tool type.
const helped = await client.chat.completions.stream(withLogprobs).finalChatCompletion();
const called = await client.chat.completions
  .stream({ ...question("@tool"), tools })
  .finalChatCompletion();

let refused;
try {
  await client.chat.completions.create({ ...question("x"), temperature: 3 });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, param: error.param };
}

console.log(JSON.stringify({ body, chunks, helped, called, refused }));
