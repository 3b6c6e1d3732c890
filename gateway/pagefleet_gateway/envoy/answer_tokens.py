"""The Envoy script that reads an answer's tokens. Pure: Lua in a text.

Our engine sends the numbers itself (a trailer, or headers), and then the script ends at once. In other engines' answers the
script searches the last bytes for the last `completion_tokens` and `prompt_tokens` of OpenAI's `usage` (`output_tokens` and
`input_tokens` of the Responses API). Only the last `usage` counts: engines repeat JSON of the client before it, such as the schemas of its
tools. In a stream it does so only when the client asked for the usage, because a look at every chunk costs half of what passing it on
does. An answer with neither is not measured.
"""

from __future__ import annotations

from pagefleet_contract.headers import OUTPUT_TOKENS_HEADER

TOKENS_METADATA = "pagefleet.answers"  # namespace of the dynamic metadata: `tokens` and `prompt`, digits
TAIL_BYTES = 4096  # of each of the last three chunks: OpenAI's usage comes last, in an event or an object of its own
USAGE = "x-pagefleet-usage"  # a header from the picker: the client asked for a last event with the usage

SCRIPT = f"""
local function last(text, one, other)
  local tokens = nil
  for usage in string.gmatch(text, '"usage"%s*:%s*(%b{{}})') do
    for _, name in ipairs({{one, other}}) do
      tokens = string.match(usage, '"' .. name .. '"%s*:%s*(%d+)') or tokens
    end
  end
  return tokens
end

function envoy_on_response(handle)
  local headers = handle:headers()
  if headers:get("{OUTPUT_TOKENS_HEADER}") ~= nil or headers:get("trailer") == "{OUTPUT_TOKENS_HEADER}" then return end
  local kind = headers:get("content-type")
  if kind == nil or headers:get(":status") ~= "200" or headers:get("content-encoding") ~= nil then return end
  local json = string.find(kind, "application/json", 1, true)
  if json == nil then
    local picked = handle:streamInfo():dynamicMetadata():get("envoy.filters.http.ext_authz")
    if picked == nil or picked["{USAGE}"] == nil then return end
  end
  local one, two, three = "", "", ""
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    if size > {TAIL_BYTES} then
      one, two, three = two, three, chunk:getBytes(size - {TAIL_BYTES}, {TAIL_BYTES})
    elseif size > 0 then
      one, two, three = two, three, chunk:getBytes(0, size)
    end
  end
  local text, metadata = one .. two .. three, handle:streamInfo():dynamicMetadata()
  local tokens = last(text, "completion_tokens", "output_tokens")
  local prompt = last(text, "prompt_tokens", "input_tokens")
  if tokens ~= nil then metadata:set("{TOKENS_METADATA}", "tokens", tokens) end
  if prompt ~= nil then metadata:set("{TOKENS_METADATA}", "prompt", prompt) end
end
"""
