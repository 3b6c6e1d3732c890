// Shared by both ends: the clock, sockets, quantiles, a message's head.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

inline double seconds(const timespec& at) {
    return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
}

inline double now(clockid_t clock) {
    timespec at;
    clock_gettime(clock, &at);
    return seconds(at);
}

inline void require(bool held, const char* what) {
    if (held) return;
    std::fprintf(stderr, "wire: %s: %s\n", what, std::strerror(errno));
    std::exit(1);
}

inline std::vector<int> numbers(const std::string& text) {
    std::vector<int> values;
    for (size_t at = 0; at < text.size(); at = std::min(text.find(',', at), text.size() - 1) + 1)
        values.push_back(std::atoi(text.c_str() + at));
    return values;
}

// {"count": n, "p50": ..., "p95": ..., "p99": ...}, in the unit of the values.
inline std::string quantiles(std::vector<double>& values) {
    if (values.empty()) return "{}";
    std::sort(values.begin(), values.end());
    auto at = [&](double share) {
        return values[std::min(values.size() - 1, static_cast<size_t>(static_cast<double>(values.size()) * share))];
    };
    char text[160];
    std::snprintf(text, sizeof text, "{\"count\": %zu, \"p50\": %.9f, \"p95\": %.9f, \"p99\": %.9f}", values.size(),
                  at(0.5), at(0.95), at(0.99));
    return text;
}

inline void watch(int poll, int fd, uint32_t events, int how = EPOLL_CTL_ADD) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    require(epoll_ctl(poll, how, fd, &event) == 0, "epoll_ctl");
}

inline sockaddr_in local(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

inline void prompt(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

// Where the value of a header (lower case, with its colon) begins in a message's head; npos: it is not there.
inline size_t header(const std::string& head, const char* name) {
    const size_t length = std::strlen(name);
    for (size_t line = head.find("\r\n"); line != std::string::npos; line = head.find("\r\n", line + 2))
        if (strncasecmp(head.c_str() + line + 2, name, length) == 0) return line + 2 + length;
    return std::string::npos;
}
