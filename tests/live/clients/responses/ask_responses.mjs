// Asks a proxy (its /v1 address, a key and a model are the arguments) for responses through
// openai-node; prints one JSON object.
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const asked = (input) => ({ model, temperature: 0, input });
const tools = [
  {
    type: "function",
    name: "get_time",
    strict: true,
    parameters: {
      type: "object",
      properties: { tz: { type: "string" } },
      required: ["tz"],
      additionalProperties: false,
    },
  },
];
const gathered = async (events) => {
  const found = [];
  for await (const event of await events) {
    found.push(event);
  }
  return found;
};

const { responses } = client;
const scored = { include: ["message.output_text.logprobs"], top_logprobs: 2 };
const body = await responses.create({ ...asked("Say hello."), ...scored });
const events = await gathered(
  responses.create({ ...asked("Say hello."), ...scored, stream: true }),
);
const helped = await responses.stream({ ...asked("@think") }).finalResponse();
const called = await responses.stream({ ...asked("@tool"), tools }).finalResponse();
const city = z.object({ city: z.enum(["Paris", "London"]), people: z.int() });
const parsed = await responses.parse({
  ...asked("Which city?"),
  text: { format: zodTextFormat(city, "city") },
});
const retrieved = await responses.retrieve(body.id);
const replayed = await gathered(responses.retrieve(body.id, { stream: true }));
const next = await responses.create({ ...asked("Again."), previous_response_id: body.id });
const items = await gathered(responses.inputItems.list(next.id));

let refused;
try {
  await responses.create({ ...asked("x"), background: true });
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, param: error.param };
}

console.log(
  JSON.stringify({
    body, events, helped, called, parsed: parsed.output_parsed, retrieved, replayed, next, items,
    refused,
  }),
);
