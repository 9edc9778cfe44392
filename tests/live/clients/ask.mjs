// Asks the proxy (its /v1 address is the argument) through openai-node; prints one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const plain = { model: "tiny", temperature: 0, prompt: "Say this:\n" };
const scored = { ...plain, logprobs: 2 };

const gathered = async (asked) => {
  const chunks = [];
  for await (const chunk of await asked) {
    chunks.push(chunk);
  }
  return chunks;
};

const { completions } = client;
const body = await completions.create(scored);
const chunks = await gathered(
  completions.create({ ...scored, stream: true, stream_options: { include_usage: true } }),
);
const several = await completions.create({ ...plain, prompt: [plain.prompt, "hello world"], n: 2 });
const echoed = await completions.create({ ...scored, prompt: "hello world", max_tokens: 2, echo: true });
const unscored = await completions.create({ ...plain, max_tokens: 3 });

const messages = [{ role: "user", content: "Say hello." }];
const chat = await client.chat.completions.create({
  model: "tiny",
  temperature: 0,
  messages,
  logprobs: true,
  top_logprobs: 2,
});

let refused;
try {
  await completions.create({ ...plain, logprobs: 6 });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, param: error.param };
}

console.log(JSON.stringify({ body, chunks, several, echoed, unscored, chat, refused }));
