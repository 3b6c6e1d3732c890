/*
 * The first token of a stream is its first event with content, reasoning, a tool call or a finish reason, in the shapes of
 * chat completions, Responses and Messages. Comments, events that only name the role, open an item or a block that is no
 * call, or only give usage are none. `data: [DONE]` ends the wait, as does data that is no
 * JSON or has none of the shapes below: an answer that is not understood is not ours to hold.
 */
#define _GNU_SOURCE
#include "events.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef struct { const char *at, *end; bool broken; } Reader;

bool is(Text text, const char *word) {
  return text.length == strlen(word) && !memcmp(text.at, word, text.length);
}

static bool ends_with(Text text, const char *word) {
  size_t length = strlen(word);
  return text.length >= length && !memcmp(text.at + text.length - length, word, length);
}

static bool space(char mark) { return mark == ' ' || mark == '\t' || mark == '\r' || mark == '\n'; }

static void skip_spaces(Reader *reader) {
  while (reader->at < reader->end && space(*reader->at)) reader->at++;
}

/* Go past `mark` if it comes next. */
static bool take(Reader *reader, char mark) {
  skip_spaces(reader);
  if (reader->at >= reader->end || *reader->at != mark) return false;
  reader->at++;
  return true;
}

/* Read a string. Its escapes stay as they are. */
static Text read_string(Reader *reader) {
  Text text = {reader->at, 0};
  if (!take(reader, '"')) { reader->broken = true; return text; }
  text.at = reader->at;
  while (reader->at < reader->end && *reader->at != '"') reader->at += *reader->at == '\\' ? 2 : 1;
  if (reader->at >= reader->end) { reader->at = reader->end; reader->broken = true; return text; }
  text.length = (size_t)(reader->at - text.at);
  reader->at++;
  return text;
}

/* Skip an object or an array. Return whether it holds anything. */
static bool skip_container(Reader *reader) {
  size_t depth = 0, inside = 0;
  while (reader->at < reader->end && !reader->broken) {
    char mark = *reader->at;
    if (mark == '"') { read_string(reader); inside++; continue; }
    reader->at++;
    if (mark == '{' || mark == '[') inside += depth++ > 0;
    else if (mark == '}' || mark == ']') { if (--depth == 0) return inside > 0; }
    else inside += !space(mark);
  }
  reader->broken = true;
  return false;
}

/* Skip a value. Return whether it says anything: it is not null, false, "", [] or {}. */
static bool skip_value(Reader *reader) {
  skip_spaces(reader);
  if (reader->at >= reader->end) { reader->broken = true; return false; }
  if (*reader->at == '"') return read_string(reader).length > 0;
  if (*reader->at == '{' || *reader->at == '[') return skip_container(reader);
  Text word = {reader->at, 0};
  while (reader->at < reader->end && !space(*reader->at) && *reader->at != ',' && *reader->at != ']' && *reader->at != '}')
    reader->at++;
  word.length = (size_t)(reader->at - word.at);
  if (word.length == 0) reader->broken = true;
  return !is(word, "null") && !is(word, "false");
}

/* Go to an object's next key. Return false at the object's end. */
static bool next_key(Reader *reader, bool *first, Text *key) {
  if (reader->broken || take(reader, '}')) return false;
  if (!*first && !take(reader, ',')) { reader->broken = true; return false; }
  *first = false;
  *key = read_string(reader);
  if (!take(reader, ':')) reader->broken = true;
  return !reader->broken;
}

/* A delta holds a token when anything but its role and its type is set. */
static bool delta_holds_token(Reader *reader) {
  bool first = true, token = false;
  Text key;
  if (!take(reader, '{')) return skip_value(reader);
  while (next_key(reader, &first, &key))
    if (skip_value(reader) && !is(key, "role") && !is(key, "type")) token = true;
  return token;
}

/* Whether an item of a response, or a block of a message, is a call of a tool. */
static bool is_call(Reader *reader) {
  bool first = true, call = false;
  Text key;
  if (!take(reader, '{')) { skip_value(reader); return false; }
  while (next_key(reader, &first, &key)) {
    skip_spaces(reader);
    if (!is(key, "type") || reader->at >= reader->end || *reader->at != '"') { skip_value(reader); continue; }
    Text kind = read_string(reader);
    call |= ends_with(kind, "_call") || ends_with(kind, "tool_use");
  }
  return call;
}

static bool choice_holds_token(Reader *reader) {
  bool first = true, token = false;
  Text key;
  if (!take(reader, '{')) return skip_value(reader);
  while (next_key(reader, &first, &key)) {
    if (is(key, "delta")) token |= delta_holds_token(reader);
    else token |= skip_value(reader) && (is(key, "text") || is(key, "finish_reason") || is(key, "message"));
  }
  return token;
}

static bool choices_hold_token(Reader *reader) {
  bool token = false;
  if (!take(reader, '[')) { skip_value(reader); return false; }
  if (take(reader, ']')) return false;
  do token |= choice_holds_token(reader); while (!reader->broken && take(reader, ','));
  if (!take(reader, ']')) reader->broken = true;
  return token;
}

/* The events of the Responses API, and of Messages, that come before the first token. Every other kind ends the wait. */
static bool precedes_tokens(Text kind) {
  return is(kind, "response.created") || is(kind, "response.queued") || is(kind, "response.in_progress") ||
         ends_with(kind, ".added") || is(kind, "message_start") || is(kind, "content_block_start") ||
         is(kind, "content_block_stop") || is(kind, "ping");
}

/* Judge an event that names its kind. `says`: its delta says something, or it has none. `call`: it begins a call of a tool. */
static enum event judge_kind(Text kind, bool says, bool call) {
  if (is(kind, "error") || is(kind, "response.failed")) return FAILURE;
  if (ends_with(kind, ".delta") || is(kind, "content_block_delta")) return says ? TOKEN : NOTHING;
  return call || !precedes_tokens(kind) ? TOKEN : NOTHING;
}

static enum event judge(Text data) {
  Reader reader = {data.at, data.at + data.length, false};
  bool first = true, token = false, known = false, failure = false, says = true, call = false;
  Text key, kind = {NULL, 0};
  if (!take(&reader, '{')) return TOKEN;
  while (next_key(&reader, &first, &key)) {
    skip_spaces(&reader);
    if (is(key, "choices")) {
      known = true;
      token |= choices_hold_token(&reader);
    } else if (is(key, "error")) {
      failure |= skip_value(&reader);
    } else if (is(key, "type") && reader.at < reader.end && *reader.at == '"') {
      kind = read_string(&reader);
    } else if (is(key, "delta")) {
      says = delta_holds_token(&reader);
    } else if (is(key, "item") || is(key, "content_block")) {
      call |= is_call(&reader);
    } else {
      skip_value(&reader);
    }
  }
  if (reader.broken) return TOKEN;
  if (failure) return FAILURE;
  if (kind.at != NULL && !token) return judge_kind(kind, says, call);
  return token || !known ? TOKEN : NOTHING;
}

bool keep(Events *events, Text part) {
  if (events->length + part.length > events->space) {
    size_t space = (events->length + part.length) * 2;
    char *line = realloc(events->line, space);
    if (line == NULL) return false;
    events->line = line;
    events->space = space;
  }
  if (part.length) memcpy(events->line + events->length, part.at, part.length);
  events->length += part.length;
  return true;
}

static enum event judge_line(Text line, Text *data) {
  if (line.length < 5 || memcmp(line.at, "data:", 5)) return NOTHING;
  *data = (Text){line.at + 5, line.length - 5};
  while (data->length && space(*data->at)) { data->at++; data->length--; }
  return data->length ? judge(*data) : NOTHING;
}

enum event read_events(Events *events, Text chunk, Text *data) {
  const char *at = chunk.at, *end = chunk.at + chunk.length;
  while (at < end) {
    const char *stop = at;
    while (stop < end && *stop != '\n' && *stop != '\r') stop++;
    Text line = {at, (size_t)(stop - at)};
    if (stop == end) return keep(events, line) ? NOTHING : TOKEN;
    if (events->length) {
      if (!keep(events, line)) return TOKEN;
      line = (Text){events->line, events->length};
      events->length = 0;
    }
    enum event event = judge_line(line, data);
    if (event != NOTHING) return event;
    at = stop + 1;
  }
  return NOTHING;
}

bool find_error_event(size_t *matched, Text chunk) {
  /* Within a string of an answer quotes and line ends would be escaped, so only an event itself can begin like this. No mark
   * holds its first byte again, so a new match can only begin at the byte that ends the old one. The last byte of the names,
   * a line's end, is `\n` or `\r`. The last one of the data is the first of the error's value: `null` is no error, and some
   * engines write it into each event. */
  static const char *const marks[] = {"data: {\"error\": v", "\nevent: error\r", "\nevent: response.failed\r"};
  enum { DATA, ERROR, FAILED, WIDTH = 64, SHARED = 8, SPACE_IN_DATA = 5, SPACE_IN_NAME = 7, SPACE_BEFORE_VALUE = 15, VALUE };
  for (const char *at = chunk.at, *end = chunk.at + chunk.length; at < end; at++) {
    if (!*matched && *at != 'd' && *at != '\n') continue;
    size_t mark = *matched / WIDTH, position = *matched % WIDTH;
    char sign = *at == '\n' && marks[mark][position] == '\r' ? '\r' : *at;
    bool spaced = mark == DATA ? position == SPACE_IN_DATA || position == SPACE_BEFORE_VALUE : position == SPACE_IN_NAME;
    if (spaced && sign != ' ') position++;
    if (mark == DATA && position == VALUE) sign = sign == 'n' || space(sign) ? ' ' : marks[DATA][VALUE];
    if (mark == ERROR && position == SHARED && sign == 'r') mark = FAILED;
    if (position && sign == marks[mark][position]) position++;
    else { mark = *at == '\n' ? ERROR : DATA; position = *at == '\n' || *at == 'd'; }
    *matched = mark * WIDTH + position;
    if (position && !marks[mark][position]) { *matched = 0; return true; }
  }
  return false;
}

void close_events(Events *events) {
  free(events->line);
  *events = (Events){NULL, 0, 0};
}

static bool digit(char mark) { return mark >= '0' && mark <= '9'; }

int failure_status(Text data) {
  const char *end = data.at + data.length;
  for (const char *at = data.at; end - at > 6; at++) {
    if (memcmp(at, "\"code\"", 6)) continue;
    const char *value = at + 6;
    while (value < end && (space(*value) || *value == ':' || *value == '"')) value++;
    if (end - value >= 3 && value[0] == '4' && digit(value[1]) && digit(value[2]) && (end - value == 3 || !digit(value[3])))
      return 400 + (value[1] - '0') * 10 + (value[2] - '0');
  }
  return 503;
}

/* Skip a value. Return whether it is this string, in whatever case. */
static bool skip_string(Reader *reader, const char *word) {
  skip_spaces(reader);
  if (reader->at >= reader->end || *reader->at != '"') { skip_value(reader); return false; }
  Text text = read_string(reader);
  return text.length == strlen(word) && !strncasecmp(text.at, word, text.length);
}

static bool error_states_full(Reader *reader) {
  static const char message[] = "Model is overloaded";
  bool first = true, full = false;
  Text key;
  if (!take(reader, '{')) return skip_string(reader, message);
  while (next_key(reader, &first, &key)) {
    if (is(key, "message")) full |= skip_string(reader, message);
    else skip_value(reader);
  }
  return full;
}

bool states_full(Text data) {
  Reader reader = {data.at, data.at + data.length, false};
  bool first = true, full = false;
  Text key;
  if (!take(&reader, '{')) return false;
  while (next_key(&reader, &first, &key)) {
    if (is(key, "error")) full |= error_states_full(&reader);
    else if (is(key, "error_type")) full |= skip_string(&reader, "overloaded");
    else skip_value(&reader);
  }
  return full && !reader.broken;
}
