// Engines without a model, one a port: they answer and stream as bench/gatewaybench/stub.py does.
#pragma once

#include <signal.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <map>

#include "common.h"

const std::string EVENT =
    "data: {\"id\":\"c\",\"object\":\"text_completion\",\"created\":0,\"model\":\"m\","
    "\"choices\":[{\"index\":0,\"text\":\" token\"}]}\n\n";
const std::string HEAD =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    "trailer: x-pagefleet-output-tokens\r\n\r\n";
const std::string MODELS = "{\"object\": \"list\", \"data\": [{\"id\": \"m\", \"object\": \"model\"}]}";
inline volatile sig_atomic_t stopping = 0;

inline std::string chunk(const std::string& data) {
    char size[16];
    std::snprintf(size, sizeof size, "%zx\r\n", data.size());
    return size + data + "\r\n";
}

class Engines {
  public:
    Engines(const std::vector<int>& ports, double interval)
        : poll_(epoll_create1(0)), timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), streams_(ports.size()),
          every_(interval / static_cast<double>(ports.size())), piece_(chunk(EVENT)) {
        for (size_t engine = 0; engine < ports.size(); engine++) {
            const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
            const sockaddr_in address = local(ports[engine]);
            require(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "bind");
            require(listen(fd, 1024) == 0, "listen");
            listeners_[fd] = static_cast<int>(engine);
            watch(poll_, fd, EPOLLIN);
        }
        watch(poll_, timer_, EPOLLIN);
    }

    void serve() {
        std::puts("serving");
        std::fflush(stdout);
        std::vector<epoll_event> ready(256);
        due_ = now(CLOCK_MONOTONIC);
        arm();
        while (!stopping) {
            const int count = epoll_wait(poll_, ready.data(), static_cast<int>(ready.size()), -1);
            for (int i = 0; i < count; i++) {
                const int fd = ready[static_cast<size_t>(i)].data.fd;
                const uint32_t events = ready[static_cast<size_t>(i)].events;
                if (fd == timer_) tick();
                else if (listeners_.count(fd)) accept_all(fd, listeners_[fd]);
                else {
                    if (events & EPOLLOUT) flush(fd);
                    if (events & ~static_cast<uint32_t>(EPOLLOUT)) receive(fd);
                }
            }
        }
        std::printf("{\"late\": %s}\n", quantiles(late_).c_str());
    }

  private:
    struct Connection {
        int engine = -1;            // -1: closed
        long sent = 0, requested = 0;  // tokens of the answer under way
        std::string in, out;        // bytes that are not parsed yet; bytes that the socket has not accepted yet
    };

    // Engines step in turn, as processes of their own would: not all their streams in one moment.
    void tick() {
        uint64_t times;
        if (read(timer_, &times, sizeof times) < 0) return;
        auto& streams = streams_[turn_];
        if (!streams.empty()) late_.push_back(now(CLOCK_MONOTONIC) - due_);
        size_t remaining = 0;
        for (const int fd : streams) {
            Connection& one = connections_[static_cast<size_t>(fd)];
            const bool last = ++one.sent >= one.requested;
            send(fd, last ? piece_ + ending(one.requested) : piece_);
            if (!last) streams[remaining++] = fd;
        }
        streams.resize(remaining);
        turn_ = (turn_ + 1) % streams_.size();
        // Back in time after a late step, unless a whole step was missed.
        due_ = std::max(due_ + every_, now(CLOCK_MONOTONIC) - every_);
        arm();
    }

    void arm() {
        itimerspec when{};
        when.it_value.tv_sec = static_cast<time_t>(due_);
        when.it_value.tv_nsec = static_cast<long>((due_ - static_cast<double>(when.it_value.tv_sec)) * 1e9);
        timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
    }

    void accept_all(int listener, int engine) {
        for (;;) {
            const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
            if (fd < 0) return;
            prompt(fd);
            if (connections_.size() <= static_cast<size_t>(fd)) connections_.resize(static_cast<size_t>(fd) + 64);
            connections_[static_cast<size_t>(fd)] = Connection{};
            connections_[static_cast<size_t>(fd)].engine = engine;
            watch(poll_, fd, EPOLLIN);
        }
    }

    void receive(int fd) {
        Connection& one = connections_[static_cast<size_t>(fd)];
        char buffer[16384];
        const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
        if (size < 0 && errno == EAGAIN) return;
        if (size <= 0) return drop(fd);
        one.in.append(buffer, static_cast<size_t>(size));
        for (size_t end; (end = one.in.find("\r\n\r\n")) != std::string::npos;) {
            const std::string head = one.in.substr(0, end + 2);
            // A router that tries HTTP/2 first, or a body without a length: an engine here speaks plain HTTP/1.1.
            if (head.compare(0, 3, "PRI") == 0 || header(head, "transfer-encoding:") != std::string::npos) return drop(fd);
            const size_t length = header(head, "content-length:");
            const size_t body = length == std::string::npos ? 0 : std::strtoul(head.c_str() + length, nullptr, 10);
            if (one.in.size() < end + 4 + body) return;
            const std::string whole = one.in.substr(end + 4, body);
            one.in.erase(0, end + 4 + body);
            answer(fd, head, whole);
            if (one.engine < 0) return;
        }
    }

    void answer(int fd, const std::string& head, const std::string& body) {
        Connection& one = connections_[static_cast<size_t>(fd)];
        auto& streams = streams_[static_cast<size_t>(one.engine)];
        if (head.compare(0, 4, "POST") != 0) {
            const bool metrics = head.compare(0, 13, "GET /metrics ") == 0;
            const std::string text = metrics ? "pagefleet_num_requests_running " + std::to_string(streams.size()) +
                                                   "\npagefleet_num_requests_waiting 0\npagefleet_kv_cache_usage_perc 0.1\n"
                                             : MODELS;
            return send(fd, "HTTP/1.1 200 OK\r\ncontent-type: " + std::string(metrics ? "text/plain" : "application/json") +
                                "\r\ncontent-length: " + std::to_string(text.size()) + "\r\n\r\n" + text);
        }
        const size_t field = body.find("\"max_tokens\":");
        one.requested = field == std::string::npos ? 1 : std::max(1L, std::atol(body.c_str() + field + 13));
        one.sent = 1;
        if (one.requested == 1) return send(fd, HEAD + piece_ + ending(1));
        streams.push_back(fd);
        send(fd, HEAD + piece_);
    }

    static std::string ending(long tokens) {
        return chunk("data: [DONE]\n\n") + "0\r\nx-pagefleet-output-tokens: " + std::to_string(tokens) + "\r\n\r\n";
    }

    // Bytes that the socket does not accept now are sent when it does; none is ever dropped.
    void send(int fd, const std::string& data) {
        Connection& one = connections_[static_cast<size_t>(fd)];
        if (!one.out.empty()) {
            one.out += data;
            return;
        }
        const ssize_t size = ::send(fd, data.data(), data.size(), MSG_NOSIGNAL);
        if (size == static_cast<ssize_t>(data.size())) return;
        if (size < 0 && errno != EAGAIN) return;  // the peer is gone: `receive` gets its end
        one.out = data.substr(size < 0 ? 0 : static_cast<size_t>(size));
        watch(poll_, fd, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    }

    void flush(int fd) {
        Connection& one = connections_[static_cast<size_t>(fd)];
        const ssize_t size = ::send(fd, one.out.data(), one.out.size(), MSG_NOSIGNAL);
        if (size > 0) one.out.erase(0, static_cast<size_t>(size));
        if (one.out.empty()) watch(poll_, fd, EPOLLIN, EPOLL_CTL_MOD);
    }

    void drop(int fd) {
        Connection& one = connections_[static_cast<size_t>(fd)];
        auto& streams = streams_[static_cast<size_t>(one.engine)];
        streams.erase(std::remove(streams.begin(), streams.end(), fd), streams.end());
        one = Connection{};
        close(fd);
    }

    int poll_, timer_;
    std::map<int, int> listeners_;           // socket -> engine
    std::vector<Connection> connections_;    // by socket
    std::vector<std::vector<int>> streams_;  // by engine: the sockets with an answer under way
    size_t turn_ = 0;
    double every_, due_ = 0;
    std::string piece_;
    std::vector<double> late_;  // seconds, of each step with streams
};
