// Asks servers through Vercel's AI SDK; each argument is "NAME URL MODEL". Prints a JSON object,
// NAME -> MODEL -> what a stream and a body with a forced tool came to.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText, tool } from "ai";
import { z } from "zod";

const get_time = tool({ description: "Tell the time", inputSchema: z.object({ tz: z.string() }) });
const get_weather = tool({
  description: "Tell the weather",
  inputSchema: z.object({ city: z.string() }).passthrough(),
});
const settings = { prompt: "Say hello.", maxRetries: 0, temperature: 0, maxOutputTokens: 50 };

const explain = (error) => ({ error: error.name, message: error.message.slice(0, 60) });

const askStream = async (model) => {
  const said = { text: "", calls: [], errors: [], reason: null };
  const answer = streamText({ model, ...settings, tools: { get_weather }, onError() {} });
  for await (const part of answer.fullStream) {
    if (part.type === "text-delta") said.text += part.text;
    if (part.type === "tool-call") said.calls.push(part.input);
    if (part.type === "error") said.errors.push(explain(part.error));
    if (part.type === "finish-step") said.reason = part.finishReason;
  }
  return said;
};

const askForced = async (model) => {
  try {
    const toolChoice = { type: "tool", toolName: "get_time" };
    const { toolCalls } = await generateText({ model, ...settings, tools: { get_time }, toolChoice });
    return { calls: toolCalls.map((call) => call.input) };
  } catch (error) {
    return explain(error);
  }
};

const found = {};
for (const argument of process.argv.slice(2)) {
  const [name, baseURL, id] = argument.split(" ");
  const model = createOpenAICompatible({ name: "local", baseURL, apiKey: "unused" })(id);
  found[name] ??= {};
  found[name][id] = { stream: await askStream(model), forced: await askForced(model) };
}
console.log(JSON.stringify(found));
