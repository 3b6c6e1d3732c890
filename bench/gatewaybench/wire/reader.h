// The reader: streams as clients, and the times between the pieces of each.
//
// A piece's time is the kernel's, of its arrival at this socket (SO_TIMESTAMPNS): the delay until this process reads it is
// not the measured system's. So the process need not be woken for each piece, and polls every millisecond.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <map>

#include "common.h"

// An answer as it comes: HTTP/1.1 in chunks, and how many events it had.
class Answer {
  public:
    int status = 0;
    long events = 0;

    bool over() const { return part_ == OVER; }
    bool broken() const { return part_ == BROKEN; }

    void feed(const char* data, size_t size) {
        for (size_t at = 0; at < size && part_ < OVER;) {
            if (part_ == DATA) {
                const size_t taken = std::min(left_, size - at);
                for (size_t i = at; i < at + taken; before_ = data[i++]) events += data[i] == '\n' && before_ == '\n';
                at += taken;
                left_ -= taken;
                if (!left_) part_ = AFTER;
                continue;
            }
            line_ += data[at++];
            if (line_.size() >= 2 && line_.compare(line_.size() - 2, 2, "\r\n") == 0) line();
        }
    }

  private:
    enum Part { HEADERS, SIZE, DATA, AFTER, TRAILERS, OVER, BROKEN };

    void line() {
        if (part_ == HEADERS) {
            if (line_.size() > 4 && line_.compare(line_.size() - 4, 4, "\r\n\r\n") == 0) {
                status = line_.compare(0, 7, "HTTP/1.") == 0 ? std::atoi(line_.c_str() + 9) : 0;
                const size_t coding = header(line_, "transfer-encoding:");
                part_ = status == 200 && coding != std::string::npos ? SIZE : BROKEN;
                line_.clear();
            }
            return;
        }
        if (part_ == SIZE) {
            left_ = std::strtoul(line_.c_str(), nullptr, 16);
            part_ = left_ ? DATA : TRAILERS;
        } else if (part_ == AFTER) {
            part_ = line_ == "\r\n" ? SIZE : BROKEN;
        } else if (line_ == "\r\n") {
            part_ = OVER;
        }
        line_.clear();
    }

    Part part_ = HEADERS;
    std::string line_;
    size_t left_ = 0;
    char before_ = 0;
};

struct Plan {
    std::vector<int> ports;
    std::string path;
    size_t count;
    long tokens;
    double apart, warm, seconds, limit;
};

class Reader {
  public:
    explicit Reader(const Plan& plan) : plan_(plan), poll_(epoll_create1(0)), streams_(plan.count) {}

    void run() {
        start_ = now(CLOCK_REALTIME);
        from_ = start_ + plan_.apart * static_cast<double>(plan_.count) + plan_.warm;
        to_ = from_ + plan_.seconds;
        const double end = start_ + plan_.limit;
        const timespec pause{0, 1000000};
        for (double at = start_; open_ + unbegun() > 0 && at < end; at = now(CLOCK_REALTIME)) {
            for (; unbegun() && due(begun_) <= at; begun_++) begin(begun_);
            look();
            nanosleep(&pause, nullptr);
        }
        show();
    }

  private:
    struct Stream {
        int fd = -1;
        double first = 0, last = 0;
        Answer answer;
    };

    void look() {
        std::array<epoll_event, 256> ready;
        for (int count = 256; count == 256;) {
            count = epoll_wait(poll_, ready.data(), 256, 0);
            for (int i = 0; i < count; i++) read_stream(ready[static_cast<size_t>(i)].data.fd);
        }
    }

    size_t unbegun() const { return plan_.count - begun_; }
    double due(size_t number) const { return start_ + plan_.apart * static_cast<double>(number); }

    void begin(size_t number) {
        const sockaddr_in address = local(plan_.ports[number % plan_.ports.size()]);
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        require(fd >= 0, "socket");
        if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
            statuses_["no connection"]++;
            close(fd);
            return;
        }
        prompt(fd);
        const int enabled = 1;
        require(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &enabled, sizeof enabled) == 0, "SO_TIMESTAMPNS");
        const std::string body = "{\"model\": \"m\", \"prompt\": \"hi\", \"max_tokens\": " +
                                 std::to_string(plan_.tokens) + ", \"stream\": true}";
        const std::string whole = "POST " + plan_.path + " HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n" +
                                  "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
        require(send(fd, whole.data(), whole.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(whole.size()), "send");
        fcntl(fd, F_SETFL, O_NONBLOCK);
        if (by_socket_.size() <= static_cast<size_t>(fd)) by_socket_.resize(static_cast<size_t>(fd) + 64);
        by_socket_[static_cast<size_t>(fd)] = number;
        streams_[number].fd = fd;
        watch(poll_, fd, EPOLLIN);
        open_++;
        late_.push_back(now(CLOCK_REALTIME) - due(number));
    }

    void read_stream(int fd) {
        Stream& one = streams_[by_socket_[static_cast<size_t>(fd)]];
        char buffer[16384];
        double at = now(CLOCK_REALTIME);
        const ssize_t size = receive(fd, buffer, sizeof buffer, at);
        if (size < 0 && errno == EAGAIN) return;
        const long before = one.answer.events;
        if (size > 0) one.answer.feed(buffer, static_cast<size_t>(size));
        if (size <= 0 || one.answer.broken()) {
            statuses_[one.answer.status && one.answer.status != 200 ? std::to_string(one.answer.status) : "cut off"]++;
            return end(one);
        }
        if (!one.first) {
            one.first = at;
            ttft_.push_back(at - due(by_socket_[static_cast<size_t>(fd)]));
        } else if (one.last >= from_ && one.last < to_) {
            gaps_.push_back(at - one.last);
            counted_ += one.answer.events - before;
        }
        one.last = at;
        if (!one.answer.over()) return;
        // One event for each token, and the last one, which ends the answer.
        if (one.answer.events == plan_.tokens + 1) answered_++;
        else statuses_["events missing"]++;
        throughout_ += one.first <= from_ && at >= to_;
        end(one);
    }

    // Sets `at` to the arrival of the last of the bytes; an end of the stream has none.
    static ssize_t receive(int fd, char* buffer, size_t room, double& at) {
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
        iovec part{buffer, room};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        const ssize_t size = recvmsg(fd, &message, 0);
        const cmsghdr* stamped = size > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
        if (stamped && stamped->cmsg_level == SOL_SOCKET && stamped->cmsg_type == SO_TIMESTAMPNS) {
            timespec stamp;
            std::memcpy(&stamp, CMSG_DATA(stamped), sizeof stamp);
            at = seconds(stamp);
        }
        return size;
    }

    void end(Stream& one) {
        close(one.fd);
        open_--;
    }

    void show() {
        rusage used;
        getrusage(RUSAGE_SELF, &used);
        const double cpu = static_cast<double>(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                           static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
        std::string statuses;
        long failed = 0;
        for (const auto& [what, times] : statuses_) {
            statuses += (failed ? ", \"" : "\"") + what + "\": " + std::to_string(times);
            failed += times;
        }
        std::printf("{\"answered\": %ld, \"failed\": %ld, \"unanswered\": %zu, \"throughout\": %ld, \"statuses\": {%s}, ",
                    answered_, failed, open_, throughout_, statuses.c_str());
        std::printf("\"events\": %ld, \"pieces\": %zu, \"cores\": %.3f, ", counted_, gaps_.size(), cpu / (now(CLOCK_REALTIME) - start_));
        std::printf("\"ttft\": %s, \"itl\": %s, \"late\": %s}\n", quantiles(ttft_).c_str(), quantiles(gaps_).c_str(),
                    quantiles(late_).c_str());
    }

    const Plan plan_;
    int poll_;
    std::vector<Stream> streams_;
    std::vector<size_t> by_socket_;
    size_t begun_ = 0, open_ = 0;
    long answered_ = 0, throughout_ = 0, counted_ = 0;
    double start_ = 0, from_ = 0, to_ = 0;  // gaps that begin from `from_` on and before `to_` count
    std::map<std::string, long> statuses_;
    std::vector<double> ttft_, gaps_, late_;  // seconds
};
