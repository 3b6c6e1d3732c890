/*
 * The first token of a stream is its first event with content, reasoning, a tool call or a finish reason. Comments, events
 * that only name the role and events that only give usage are none. `data: [DONE]` ends the wait, as does data that is no
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

/* A delta holds a token when anything but its role is set. */
static bool delta_holds_token(Reader *reader) {
  bool first = true, token = false;
  Text key;
  if (!take(reader, '{')) return skip_value(reader);
  while (next_key(reader, &first, &key))
    if (skip_value(reader) && !is(key, "role")) token = true;
  return token;
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
         ends_with(kind, ".added") || is(kind, "message_start") || is(kind, "content_block_start") || is(kind, "ping");
}

static enum event judge(Text data) {
  Reader reader = {data.at, data.at + data.length, false};
  bool first = true, token = false, known = false, failure = false;
  Text key;
  if (!take(&reader, '{')) return TOKEN;
  while (next_key(&reader, &first, &key)) {
    skip_spaces(&reader);
    if (is(key, "choices")) {
      known = true;
      token |= choices_hold_token(&reader);
    } else if (is(key, "error")) {
      failure |= skip_value(&reader);
    } else if (is(key, "type") && reader.at < reader.end && *reader.at == '"') {
      Text kind = read_string(&reader);
      known = true;
      if (is(kind, "error")) failure = true;
      else token |= !precedes_tokens(kind);
    } else {
      skip_value(&reader);
    }
  }
  if (reader.broken) return TOKEN;
  if (failure) return FAILURE;
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
  /* Within a string of an answer the quotes would be escaped, so only an event's own object can begin like this. */
  static const char mark[] = "data: {\"error\"";
  enum { LENGTH = sizeof mark - 1, OPTIONAL_SPACE = 5 };
  for (const char *at = chunk.at, *end = chunk.at + chunk.length; at < end; at++) {
    if (*matched == 0 && (at = memchr(at, mark[0], (size_t)(end - at))) == NULL) return false;
    if (*matched == OPTIONAL_SPACE && *at != ' ') ++*matched;
    /* No `d` comes again within the mark, so a new match can only begin at the byte that ends the old one. */
    *matched = *at == mark[*matched] ? *matched + 1 : *at == mark[0];
    if (*matched == LENGTH) { *matched = 0; return true; }
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
