"""What proxy/endpoints/openapi.json says of parameters, headers and statuses."""

from __future__ import annotations

FIELDS: dict[str, str] = {
    "audio": "The voice and format of a spoken answer; a 400 where the backend does not speak.",
    "best_of": "How many choices to generate for each prompt, of which the best n are answered.",
    "dimensions": "The length of the vectors; a backend may know one only.",
    "echo": "Begin the text with the prompt, and the logprobs with the prompt's.",
    "encoding_format": "The vectors' form: numbers, or base64 of little-endian float32.",
    "frequency_penalty": "Lowers a token's chance with each time that it was there.",
    "function_call": "OpenAI's older name of tool_choice.",
    "functions": "OpenAI's older name of tools; not together with them.",
    "input": "What to embed: a text, texts, token ids, or arrays of token ids.",
    "logit_bias": "Token id of the served model -> what is added to its logit.",
    "logprobs": "Whether the tokens' logprobs are answered; for completions how many alternatives.",
    "max_completion_tokens": "The most tokens of a choice.",
    "max_tokens": "The most tokens of a choice; OpenAI's older name. Completions: 16 if absent.",
    "messages": "The conversation.",
    "metadata": "Pairs of texts, kept with a stored answer, by which it can be found.",
    "modalities": "The answer's kinds, text where absent.",
    "moderation": "A 400: no backend moderates.",
    "model": "A model that GET /v1/models lists.",
    "n": "How many choices.",
    "oai_compat": "The proxy's own key. False: untranslated, an answer as the backend has it.",
    "parallel_tool_calls": "Whether one answer may hold several calls.",
    "prediction": "What most of the answer will be; it changes no answer.",
    "presence_penalty": "Lowers a token's chance if it was there.",
    "prompt": "What to continue: a text, texts, token ids, or arrays of token ids.",
    "prompt_cache_key": "Accepted; it changes no answer.",
    "prompt_cache_options": "Accepted; it changes no answer.",
    "prompt_cache_retention": "Accepted; it changes no answer.",
    "reasoning_effort": "How long to reason, in the words of the model.",
    "response_format": "The form of the answer's text.",
    "safety_identifier": "A stable name of the end user; it changes no answer.",
    "seed": "The same seed, request and server give the same answer, where the server can.",
    "service_tier": "Accepted, and answered with default.",
    "stop": "Texts at which an answer ends; it does not hold them.",
    "store": "Keep the answer for GET /v1/chat/completions, where a store is configured.",
    "stream": "Answer as server-sent events.",
    "stream_options": "Only with stream.",
    "suffix": "What follows the text to be generated; a 400 where the backend cannot do it.",
    "temperature": "0 takes the likeliest token.",
    "tool_choice": "Whether and which tools are called; beyond none and auto only with tools.",
    "tools": "What the model may call.",
    "top_logprobs": "How many alternatives of each token; only with logprobs.",
    "top_p": "The share of probability that tokens are taken from.",
    "user": "OpenAI's older name of safety_identifier.",
    "verbosity": "How long the answer should be.",
    "web_search_options": "A 400 where the backend does not search.",
}
"""Parameter -> what it is, in every request that has it."""

OF_RESPONSES: dict[str, str] = {
    "client_metadata": "Accepted; it changes no answer.",
    "include": "What the answer holds beside the text, such as its logprobs.",
    "input": "A text, or the items of the conversation.",
    "instructions": "What the model is told before the input; a system message.",
    "max_output_tokens": "The most tokens of the answer, those of its reasoning among them.",
    "max_tool_calls": "About tools that OpenAI runs: accepted, and said again in the answer.",
    "previous_response_id": "The kept response that this one goes on from.",
    "reasoning": "How long to reason.",
    "store": "False: the answer is not kept for GET /v1/responses/{response_id}.",
    "stream_options": "Only with stream; no stream is padded.",
    "text": "The form of the answer's text, and how long it should be.",
    "top_logprobs": "How many alternatives of each token; above 0 it includes the logprobs.",
    "truncation": "auto cuts nothing: what is too long is a 400.",
}
"""The same where a request for a response has no parameter of that name, or another sense."""

RESPONSE_FIELDS: dict[str, str] = FIELDS | OF_RESPONSES
MOVED_HERE = "A 400 unless null: here it is {}."
REFUSED_HERE = "A 400 unless null or false."

STATUSES: dict[str, str] = {
    "400": "The request is refused, by the proxy or by the backend; `param` names the parameter.",
    "401": "The key is missing or not known here (auth.keys), or to the backend (auth = pass).",
    "403": "The Host header names no address of this server.",
    "404": "No such model, stored completion or response, backend or URL.",
    "405": "Another method is wanted; the header Allow names it.",
    "408": "The request did not come to its end in time.",
    "413": "The body is too large.",
    "415": "The body is no JSON, or compressed.",
    "429": "Too many requests are open, here or at the backend, or the client is over its quota.",
    "431": "The headers are too large.",
    "500": "The proxy failed, or a setting of it cannot be used.",
    "501": "The backend cannot do this at all.",
    "502": "The backend failed, cannot be reached, or answered what is no answer.",
    "503": "The backend or the engine is not ready, or the store cannot be used.",
    "504": "The backend did not answer in time.",
    "505": "Not HTTP/1.1.",
    "4XX": "Another refusal of the backend's.",
    "5XX": "Another failure of the backend's.",
}

EXTENDED = (
    " Keys beyond these are extensions, which the request (its switches, x-wellspoken-extensions, "
    "x-wellspoken-keep) or the route asks for."
)

TITLES: dict[str, str] = {
    "/chat_tokenize": "TGI: the token ids of a conversation.",
    "/detokenize": "The text of token ids.",
    "/extras/detokenize": "llama-cpp-python: the text of token ids.",
    "/extras/tokenize": "llama-cpp-python: a text's token ids.",
    "/extras/tokenize/count": "llama-cpp-python: how many tokens a text has.",
    "/rerank": "Documents in the order in which they fit a query.",
    "/reranking": "llama.cpp's other name of /rerank.",
    "/score": "vLLM: how well texts fit each other.",
    "/tokenize": "A text's token ids.",
    "/v1/classify": "SGLang: the classes of texts.",
    "/v1/detokenize": "SGLang's other name of /detokenize.",
    "/v1/messages": "Anthropic's messages; errors too are in Anthropic's form.",
    "/v1/messages/count_tokens": "Anthropic's count of a conversation's tokens.",
    "/v1/rerank": "Documents in the order in which they fit a query.",
    "/v1/reranking": "llama.cpp's other name of /v1/rerank.",
    "/v1/score": "How well texts fit each other.",
    "/v1/tokenize": "SGLang's other name of /tokenize.",
    "/v2/rerank": "Documents in the order in which they fit a query.",
}
"""Endpoints that pass through, with a 404 where the backend lacks them."""
