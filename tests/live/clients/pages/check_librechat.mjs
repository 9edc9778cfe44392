// Reads configurations of LibreChat, as JSON in the arguments; prints what its schema makes of each:
// the custom endpoints, or null where it refuses the file.
import { configSchema } from "librechat-data-provider";

const read = (text) => {
  const found = configSchema.strict().safeParse(JSON.parse(text));
  return found.success ? found.data.endpoints.custom : null;
};
console.log(JSON.stringify(process.argv.slice(2).map(read)));
