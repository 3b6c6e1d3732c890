"""The Envoy script that changes a request's body as the picker says. Pure: Lua in a text.

ext_authz cannot change a body. So the picker names the pieces to replace in a header, in the form of
`pagefleet_gateway.bodies.edits.Edit`, with semicolons between them. A request without the header passes at once. Envoy itself
corrects `content-length` when the body is set. The script could not: `headers` must not be used after `body()`, which waits.
"""

from __future__ import annotations

EDITS = "x-pagefleet-body-edits"  # a header from the picker; the engine does not get it

SCRIPT = f"""
function envoy_on_request(handle)
  local headers = handle:headers()
  local edits = headers:get("{EDITS}")
  if edits == nil then return end
  headers:remove("{EDITS}")
  local body = handle:body()
  if body == nil then return end
  local before, after, at = body:getBytes(0, body:length()), {{}}, 1
  local list = {{}}
  for start, length, text in string.gmatch(edits, "(%d+) (%d+) ([^;]*)") do
    list[#list + 1] = {{tonumber(start), tonumber(length), text}}
  end
  table.sort(list, function(one, other) return one[1] < other[1] end)
  for _, edit in ipairs(list) do
    after[#after + 1] = string.sub(before, at, edit[1]) .. edit[3]
    at = edit[1] + edit[2] + 1
  end
  after[#after + 1] = string.sub(before, at)
  body:setBytes(table.concat(after))
end
"""
