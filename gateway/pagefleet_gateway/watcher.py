"""Envoy's look at answers: how many tokens one had. Pure: builds dicts and Lua.

Our engine says it itself (a trailer, or a header of an answer that is not streamed), and then the script ends at once.
In other engines' answers the last `completion_tokens` of OpenAI's `usage` is looked for in the last bytes. An answer
with neither is not measured.
"""

from __future__ import annotations

from .clusters import typed

TOKENS = "x-pagefleet-output-tokens"  # the engine's trailer or header
SEEN = "pagefleet.answers"  # namespace of the dynamic metadata: `tokens`, digits
TAIL_BYTES = 4096  # OpenAI's usage comes last, in an event or an object of its own

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
  if json == nil and string.find(kind, "text/event-stream", 1, true) == nil then return end
  local tail = ""
  for chunk in handle:bodyChunks() do
    local size = chunk:length()
    if size >= {TAIL_BYTES} then
      tail = chunk:getBytes(size - {TAIL_BYTES}, {TAIL_BYTES})
    elseif size > 0 then
      tail = string.sub(tail, -({TAIL_BYTES} - size)) .. chunk:getBytes(0, size)
    end
  end
  local found = tokens_in(tail)
  if found ~= nil then handle:streamInfo():dynamicMetadata():set("{SEEN}", "tokens", found) end
end
"""


def watcher() -> dict[str, object]:
    return typed(
        "envoy.filters.http.lua",
        "extensions.filters.http.lua.v3.Lua",
        default_source_code={"inline_string": SCRIPT},
    )
