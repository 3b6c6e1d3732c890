/* Judges the events of an engine's stream. Pure: knows no Envoy, no clock and no socket. */
#ifndef PAGEFLEET_EVENTS_H
#define PAGEFLEET_EVENTS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct { const char *at; size_t length; } Text;

/* NOTHING: no token yet. TOKEN: the first token, or data that is not understood. FAILURE: an error came instead. */
enum event { NOTHING, TOKEN, FAILURE };

/* A stream of server-sent events (WHATWG HTML, section 9.2), read in chunks that may end anywhere. */
typedef struct {
  char *line;           /* the line that the last chunk did not end; NULL at first */
  size_t length, space; /* bytes in it; bytes allocated */
} Events;

/* Read a chunk up to its first event that is not NOTHING. `data`: that event's data, valid until the next call. */
enum event read_events(Events *events, Text chunk, Text *data);

/* Whether an error event begins in a stream of chunks. The chunks may divide it anywhere. `matched`, 0 at first: the bytes
 * of its beginning that the last chunk ended with. */
bool find_error_event(size_t *matched, Text chunk);

/* Add to the line. Return false without memory: the answer then goes on. */
bool keep(Events *events, Text part);

/* Whether an error states that its engine has no room. TGI's form: {"error": "Model is overloaded", "error_type":
 * "overloaded"}, and within a stream {"error": {"message": "Model is overloaded", ...}}. */
bool states_full(Text data);

/* Free what `events` holds. */
void close_events(Events *events);

/* The status for an error event: the 4xx that it names as its `code`; 503, which Envoy tries again, otherwise. */
int failure_status(Text data);

bool is(Text text, const char *word);

#endif
