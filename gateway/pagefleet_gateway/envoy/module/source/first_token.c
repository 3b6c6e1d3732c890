/*
 * Envoy's filters for the first token of an answer. C, because they run for every chunk of every answer.
 *
 *   arrival      On the client's side, before the picker. Notes the time at which the request's last byte came, so that a
 *                slow upload is not part of the time to a first token.
 *   first-token  On the engine's side, once for each attempt. Holds a 200's headers inside Envoy until the first token,
 *                because Envoy tries again only while it has passed nothing on, and counts an attempt's time until then.
 *                Then passes everything on, and reports the token to the gateway by one line in a pipe.
 *
 * A stream (text/event-stream) is held until events.c finds a token in it. An error as its first event becomes an answer
 * with the error's status. An error in a later event is reported to the gateway, which counts the stream as failed. Every
 * other 200 (JSON, a compressed stream) is held until its first body byte. An answer that ends, or that has filled
 * HOLD_BYTES, is passed on as it is.
 *
 * A 429 is held as well, until its body is whole. If the body is that of an engine without room (TGI), it gets the header by
 * which our own engine states this. Envoy then tries another pod. Every other 429 is the client's.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

#define HOLD_BYTES (64 * 1024) /* of one answer; Envoy's own limit is 1 MiB */
#define REFUSAL_BYTES (4 * 1024) /* of a 429; a longer one is passed on */
#define MAX_CHUNKS 64          /* pieces of one read; an answer in more pieces is passed on */
#define MAX_ID 64              /* bytes of a request's id; Envoy makes 36 */
#define MAX_ADDRESS 64         /* bytes of ip:port */
#define TEXT(literal) ((Text){literal, sizeof(literal) - 1})
#define ERROR_HEADER TEXT("x-pagefleet-error") /* this and the next: contract/pagefleet_contract/headers.py */
#define ENGINE_FULL TEXT("queue_full")
#define ARRIVED TEXT("pagefleet.arrived")

typedef struct {
  bool arrival;
  int pipe; /* to the gateway */
} Filter;

enum state { PASSING, HOLDING_EVENTS, HOLDING_BYTES, HOLDING_REFUSAL, FAILED, FOLLOWING_EVENTS };

typedef struct {
  const Filter *filter;
  enum state state;
  Events events;
  size_t held;    /* bytes */
  size_t matched; /* bytes of an error event that the last chunk ended with */
} Stream;

static int64_t microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static bool header(void *envoy, int map, Text key, Text *value) {
  return envoy_dynamic_module_callback_http_get_header(envoy, map, key, value, 0, NULL) && value->at != NULL;
}

static bool begins_with(Text text, Text start) {
  return text.length >= start.length && !memcmp(text.at, start.at, start.length);
}

static void arrive(void *envoy, const Stream *stream) {
  if (!stream->filter->arrival) return;
  int64_t now = microseconds();
  envoy_dynamic_module_callback_http_set_filter_state_bytes(envoy, ARRIVED, (Text){(const char *)&now, sizeof now});
}

/* Write "<request id> <word> <engine's address>". A line below PIPE_BUF bytes is written whole or not at all, and a full
 * pipe loses it. */
static void report(void *envoy, const Stream *stream, const char *word) {
  Text id, address = {NULL, 0};
  char line[MAX_ID + MAX_ADDRESS + 32];
  if (!header(envoy, REQUEST_HEADERS, TEXT("x-request-id"), &id) || id.length > MAX_ID) return;
  if (!envoy_dynamic_module_callback_http_filter_get_attribute_string(envoy, UPSTREAM_ADDRESS, &address) ||
      address.length > MAX_ADDRESS)
    return;
  int length = snprintf(line, sizeof line, "%.*s %s %.*s\n", (int)id.length, id.at, word, (int)address.length, address.at);
  (void)!write(stream->filter->pipe, line, (size_t)length);
}

/* Report the microseconds since the request's last byte. If the line is lost: the access log has the time as well, at the
 * answer's end. */
static void report_token(void *envoy, const Stream *stream) {
  Text arrived;
  char word[24];
  int64_t then;
  if (!envoy_dynamic_module_callback_http_get_filter_state_bytes(envoy, ARRIVED, &arrived) || arrived.length != sizeof then) return;
  memcpy(&then, arrived.at, sizeof then);
  snprintf(word, sizeof word, "%lld", (long long)(microseconds() - then));
  report(envoy, stream, word);
}

/* Report an error event after the first token, once. The stream goes on as it is. */
static void follow(void *envoy, Stream *stream) {
  Text chunks[MAX_CHUNKS];
  size_t count = envoy_dynamic_module_callback_http_get_body_chunks_size(envoy, RECEIVED_RESPONSE);
  if (count == 0) return;
  if (count > MAX_CHUNKS || !envoy_dynamic_module_callback_http_get_body_chunks(envoy, RECEIVED_RESPONSE, chunks)) {
    stream->matched = 0; /* these chunks stay unread */
    return;
  }
  for (size_t index = 0; index < count; index++)
    if (find_error_event(&stream->matched, chunks[index])) {
      report(envoy, stream, "error");
      stream->state = PASSING;
      return;
    }
}

/* Every 429 and 503 of the gateway says when to try again. */
static void set_retry_after(void *envoy) {
  Text seconds;
  if (!header(envoy, RESPONSE_HEADERS, TEXT("retry-after"), &seconds))
    envoy_dynamic_module_callback_http_set_header(envoy, RESPONSE_HEADERS, TEXT("retry-after"), TEXT("1"));
}

static void mark_full(void *envoy) {
  envoy_dynamic_module_callback_http_set_header(envoy, RESPONSE_HEADERS, ERROR_HEADER, ENGINE_FULL);
  set_retry_after(envoy);
}

static void release_refusal(void *envoy, Stream *stream) {
  if (states_full((Text){stream->events.line, stream->events.length})) mark_full(envoy);
  stream->state = PASSING;
  close_events(&stream->events);
}

/* Keep the bytes of a 429 that just came. Return whether more of them are to be held. */
static bool hold_refusal(void *envoy, Stream *stream) {
  Text chunks[MAX_CHUNKS];
  size_t count = envoy_dynamic_module_callback_http_get_body_chunks_size(envoy, RECEIVED_RESPONSE);
  stream->held += envoy_dynamic_module_callback_http_get_body_size(envoy, RECEIVED_RESPONSE);
  if (stream->held > REFUSAL_BYTES || count > MAX_CHUNKS) return false;
  if (count == 0) return true;
  if (!envoy_dynamic_module_callback_http_get_body_chunks(envoy, RECEIVED_RESPONSE, chunks)) return false;
  for (size_t index = 0; index < count; index++)
    if (!keep(&stream->events, chunks[index])) return false;
  return true;
}

/* Replace the stream by its error, as one JSON object. The rest of the stream is dropped. */
static void answer_failure(void *envoy, Text data) {
  char status[4];
  char *copy = malloc(data.length); /* `data` may lie in the body that is drained */
  Text error = {copy, copy == NULL ? 0 : data.length};
  if (copy != NULL) memcpy(copy, data.at, data.length);
  bool full = states_full(error);
  int code = full ? 429 : failure_status(error);
  snprintf(status, sizeof status, "%03d", code);
  if (full) mark_full(envoy);
  if (code == 429 || code == 503) set_retry_after(envoy);
  envoy_dynamic_module_callback_http_set_header(envoy, RESPONSE_HEADERS, TEXT(":status"), (Text){status, 3});
  envoy_dynamic_module_callback_http_set_header(envoy, RESPONSE_HEADERS, TEXT("content-type"), TEXT("application/json"));
  envoy_dynamic_module_callback_http_set_header(envoy, RESPONSE_HEADERS, TEXT("content-length"), (Text){NULL, 0});
  envoy_dynamic_module_callback_http_drain_body(envoy, BUFFERED_RESPONSE, SIZE_MAX);
  envoy_dynamic_module_callback_http_drain_body(envoy, RECEIVED_RESPONSE, SIZE_MAX);
  envoy_dynamic_module_callback_http_append_body(envoy, RECEIVED_RESPONSE, error);
  free(copy);
}

/* Look for the first token in the bytes that just came. */
static enum event find_event(void *envoy, Stream *stream, Text *data) {
  Text chunks[MAX_CHUNKS];
  size_t count = envoy_dynamic_module_callback_http_get_body_chunks_size(envoy, RECEIVED_RESPONSE);
  size_t bytes = envoy_dynamic_module_callback_http_get_body_size(envoy, RECEIVED_RESPONSE);
  enum event event = NOTHING;
  stream->held += bytes;
  if (bytes == 0) return NOTHING;
  if (stream->state == HOLDING_BYTES || count > MAX_CHUNKS ||
      !envoy_dynamic_module_callback_http_get_body_chunks(envoy, RECEIVED_RESPONSE, chunks))
    return TOKEN;
  for (size_t index = 0; index < count && event == NOTHING; index++) event = read_events(&stream->events, chunks[index], data);
  return event;
}

/* ------------------------------------------------------- hooks ------------------------------------------------------- */

const char *envoy_dynamic_module_on_program_init(void) { return ABI_VERSION; }

/* Make a filter. `config` of first-token: the path of the gateway's pipe. NULL: Envoy refuses its configuration. */
const void *envoy_dynamic_module_on_http_filter_config_new(void *envoy, Text name, Text config) {
  (void)envoy;
  char path[4096];
  Filter filter = {is(name, "arrival"), -1};
  if (!filter.arrival) {
    if (!is(name, "first-token") || config.length >= sizeof path) return NULL;
    memcpy(path, config.at, config.length);
    path[config.length] = 0;
    filter.pipe = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (filter.pipe < 0) return NULL;
  }
  Filter *made = malloc(sizeof *made);
  if (made != NULL) *made = filter;
  return made;
}

void envoy_dynamic_module_on_http_filter_config_destroy(const void *config) {
  if (((const Filter *)config)->pipe >= 0) close(((const Filter *)config)->pipe);
  free((void *)config);
}

const void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
  (void)envoy;
  Stream *stream = calloc(1, sizeof *stream);
  if (stream != NULL) stream->filter = config;
  return stream;
}

void envoy_dynamic_module_on_http_filter_destroy(const void *module) {
  close_events(&((Stream *)module)->events);
  free((void *)module);
}

int envoy_dynamic_module_on_http_filter_request_headers(void *envoy, const void *module, bool end) {
  if (end) arrive(envoy, module);
  return HEADERS_CONTINUE;
}

int envoy_dynamic_module_on_http_filter_request_body(void *envoy, const void *module, bool end) {
  if (end) arrive(envoy, module);
  return BODY_CONTINUE;
}

int envoy_dynamic_module_on_http_filter_request_trailers(void *envoy, const void *module) {
  arrive(envoy, module);
  return TRAILERS_CONTINUE;
}

int envoy_dynamic_module_on_http_filter_response_headers(void *envoy, const void *module, bool end) {
  Stream *stream = (Stream *)module;
  Text status, type, encoding, error;
  if (end || stream->filter->arrival || !header(envoy, RESPONSE_HEADERS, TEXT(":status"), &status)) return HEADERS_CONTINUE;
  bool readable = !header(envoy, RESPONSE_HEADERS, TEXT("content-encoding"), &encoding) || is(encoding, "identity");
  if (!header(envoy, RESPONSE_HEADERS, TEXT("content-type"), &type)) type = (Text){NULL, 0};
  if (is(status, "429") && readable && begins_with(type, TEXT("application/json")) &&
      !header(envoy, RESPONSE_HEADERS, ERROR_HEADER, &error)) {
    stream->state = HOLDING_REFUSAL;
    return HEADERS_HOLD;
  }
  if (!is(status, "200")) return HEADERS_CONTINUE;
  stream->state = readable && begins_with(type, TEXT("text/event-stream")) ? HOLDING_EVENTS : HOLDING_BYTES;
  return HEADERS_HOLD;
}

int envoy_dynamic_module_on_http_filter_response_body(void *envoy, const void *module, bool end) {
  Stream *stream = (Stream *)module;
  Text data = {NULL, 0};
  if (stream->state == FOLLOWING_EVENTS) follow(envoy, stream);
  if (stream->state == PASSING || stream->state == FOLLOWING_EVENTS) return BODY_CONTINUE;
  if (stream->state == HOLDING_REFUSAL) {
    if (!hold_refusal(envoy, stream)) stream->state = PASSING;
    else if (end) release_refusal(envoy, stream);
    else return BODY_HOLD_UNTIL_WATERMARK;
    return BODY_CONTINUE;
  }
  if (stream->state == FAILED) {
    envoy_dynamic_module_callback_http_drain_body(envoy, RECEIVED_RESPONSE, SIZE_MAX);
    return BODY_CONTINUE;
  }
  enum event event = find_event(envoy, stream, &data);
  if (event == NOTHING && !end && stream->held < HOLD_BYTES) return BODY_HOLD_UNTIL_WATERMARK;
  bool follows = event == TOKEN && stream->state == HOLDING_EVENTS;
  if (event == TOKEN) report_token(envoy, stream);
  stream->state = event == FAILURE ? FAILED : follows ? FOLLOWING_EVENTS : PASSING;
  if (follows) follow(envoy, stream); /* the chunks that came with the token */
  if (event == FAILURE) answer_failure(envoy, data);
  close_events(&stream->events);
  return BODY_CONTINUE;
}

int envoy_dynamic_module_on_http_filter_response_trailers(void *envoy, const void *module) {
  Stream *stream = (Stream *)module;
  if (stream->state == HOLDING_REFUSAL) release_refusal(envoy, stream);
  if (stream->state != FAILED) stream->state = PASSING;
  return TRAILERS_CONTINUE;
}

void envoy_dynamic_module_on_http_filter_stream_complete(void *envoy, const void *module) { (void)envoy, (void)module; }

/* The client reads more slowly than the answer comes, and Envoy reads no more of it: a time limit that ends it now is not the engine's. */
static void note_reading(void *envoy, const Stream *stream, Text reading) {
  if (stream->filter->arrival)
    envoy_dynamic_module_callback_http_set_dynamic_metadata_string(envoy, TEXT("pagefleet.client"), TEXT("reading"), reading);
}

void envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(void *envoy, const void *module) {
  note_reading(envoy, module, TEXT("behind"));
}

void envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(void *envoy, const void *module) {
  note_reading(envoy, module, TEXT("on time"));
}

/* Envoy demands these hooks of every module. This one starts no calls, no streams and no events. */
void envoy_dynamic_module_on_http_filter_http_callout_done(void) {}
void envoy_dynamic_module_on_http_filter_http_stream_headers(void) {}
void envoy_dynamic_module_on_http_filter_http_stream_data(void) {}
void envoy_dynamic_module_on_http_filter_http_stream_trailers(void) {}
void envoy_dynamic_module_on_http_filter_http_stream_complete(void) {}
void envoy_dynamic_module_on_http_filter_http_stream_reset(void) {}
void envoy_dynamic_module_on_http_filter_scheduled(void) {}
