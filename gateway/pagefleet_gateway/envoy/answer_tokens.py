"""Envoy's look at answers: how many tokens one had. Pure: builds dicts and Lua.

Our engine says it itself (a trailer, or a header of an answer that is not streamed), and then the script ends at once.
In other engines' answers the last `completion_tokens` of OpenAI's `usage` is looked for in the last bytes; in a stream
only when its client asked for it to be there, because a look at every chunk costs half of what passing it on does. An
answer with neither is not measured.
"""

from __future__ import annotations

from pagefleet_gateway.envoy.clusters import typed

TOKENS = "x-pagefleet-output-tokens"  # the engine's trailer or header
ERROR = "x-pagefleet-error"  # the engine's trailer, or header of an answer with 5xx: its error's code
SEEN = "pagefleet.answers"  # namespace of the dynamic metadata: `tokens`, digits
TAIL_BYTES = 4096  # of each of the last three chunks: OpenAI's usage comes last, in an event or an object of its own
USAGE = "x-pagefleet-usage"  # a header from the picker: the client asked for a last event with the usage

SCRIPT = f"""
local function tokens_in(text)
  local found = nil
  for number in string.gmatch(text, '"completion_tokens"%s*:%s*(%d+)') do found = number end
  return found
end

function envoy_on_response(handle)
  local headers = handle:headers()
  if headers:get("{TOKENS}") ~= nil or headers:get("trailer") == "{TOKENS}" then return end
  local kind = headers:get("content-type")
  if kind == nil or headers:get(":status") ~= "200" or headers:get("content-encoding") ~= nil then return end
  local json = string.find(kind, "application/json", 1, true)
  if json == nil then
    local said = handle:streamInfo():dynamicMetadata():get("envoy.filters.http.ext_authz")
    if said == nil or said["{USAGE}"] == nil then return end
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
  local found = tokens_in(one .. two .. three)
  if found ~= nil then handle:streamInfo():dynamicMetadata():set("{SEEN}", "tokens", found) end
end
"""


def watcher() -> dict[str, object]:
    return typed(
        "envoy.filters.http.lua",
        "extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": SCRIPT},
    )
