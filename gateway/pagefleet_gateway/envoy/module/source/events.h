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

/* Whether an event of a chunk is an error. One that two chunks divide is not found. */
bool holds_error_event(Text chunk);

/* Free what `events` holds. */
void close_events(Events *events);

/* The status for an error event: the 4xx that it names as its `code`; 503, which Envoy tries again, otherwise. */
int failure_status(Text data);

bool is(Text text, const char *word);

#endif
