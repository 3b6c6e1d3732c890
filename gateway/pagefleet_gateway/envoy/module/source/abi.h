/*
 * The part of Envoy's ABI for dynamic modules that first_token.c uses, in our own words. Facts: Envoy 1.40,
 * source/extensions/dynamic_modules/abi/abi.h. Envoy calls the hooks (..._on_...) and offers the callbacks.
 */
#ifndef PAGEFLEET_ABI_H
#define PAGEFLEET_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "events.h"

#define ABI_VERSION "v0.2.0" /* Envoy 1.40's. Envoy only warns of another one, so library.py compares the release. */

enum header_map { REQUEST_HEADERS, REQUEST_TRAILERS, RESPONSE_HEADERS };
enum body { RECEIVED_REQUEST, BUFFERED_REQUEST, RECEIVED_RESPONSE, BUFFERED_RESPONSE };
enum attribute { UPSTREAM_ADDRESS = 41 };
enum headers_status { HEADERS_CONTINUE, HEADERS_HOLD };
enum body_status { BODY_CONTINUE, BODY_HOLD, BODY_HOLD_UNTIL_WATERMARK };
enum trailers_status { TRAILERS_CONTINUE };

/* `stream` is Envoy's filter. A text that a callback returns is valid until the hook returns. */
bool envoy_dynamic_module_callback_http_get_header(void *stream, int map, Text key, Text *value, size_t index, size_t *count);
bool envoy_dynamic_module_callback_http_set_header(void *stream, int map, Text key, Text value);
size_t envoy_dynamic_module_callback_http_get_body_size(void *stream, int body);
size_t envoy_dynamic_module_callback_http_get_body_chunks_size(void *stream, int body);
bool envoy_dynamic_module_callback_http_get_body_chunks(void *stream, int body, Text *chunks);
bool envoy_dynamic_module_callback_http_append_body(void *stream, int body, Text data);
bool envoy_dynamic_module_callback_http_drain_body(void *stream, int body, size_t bytes);
bool envoy_dynamic_module_callback_http_set_filter_state_bytes(void *stream, Text key, Text value);
void envoy_dynamic_module_callback_http_set_dynamic_metadata_string(void *stream, Text space, Text key, Text value);
bool envoy_dynamic_module_callback_http_get_filter_state_bytes(void *stream, Text key, Text *value);
bool envoy_dynamic_module_callback_http_filter_get_attribute_string(void *stream, int attribute, Text *value);

#endif
