// Asks the proxy (its /v1 address is the argument) once per model, with openai-node's own retries;
// prints how each ended. What the models are is the scripted upstream's affair.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none" });
const ended = {};
for (const model of process.argv.slice(3)) {
  try {
    await client.chat.completions.create({ model, messages: [{ role: "user", content: "x" }] });
  } catch (error) {
    ended[model] = { status: error.status, code: error.code, requestID: error.requestID };
  }
}
const { request_id } = await client.models.list().withResponse();
console.log(JSON.stringify({ ended, request_id }));
