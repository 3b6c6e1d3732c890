// Both ends of the measurement `bench/gateway.py streams`: engines without a model, and a reader of their streams.
//
//     wire engines PORT,PORT,... INTERVAL_MS
//         serves until SIGTERM, then prints how late its steps were
//     wire read PORT,PORT,... PATH COUNT TOKENS APART_MS WARM_S SECONDS LIMIT_S
//         COUNT streams of TOKENS events, begun APART_MS after each other; once all have run for WARM_S it counts the
//         times between two pieces of a stream for SECONDS, reads all to their ends (LIMIT_S at most), and prints JSON
//
// Compiled, because in Python the two need more of two cores than most measured systems. One thread each, epoll,
// HTTP/1.1 without a library. Knows nothing of proxies and judges nothing: streams.py does.
#include <sched.h>

#include "engines.h"
#include "reader.h"

int main(int argc, char** argv) {
    const std::string what = argc > 1 ? argv[1] : "";
    // Before everything else where that is allowed: engines and clients are other machines, not the measured system's load.
    const sched_param first{1};
    sched_setscheduler(0, SCHED_FIFO, &first);
    signal(SIGTERM, [](int) { stopping = 1; });
    if (what == "engines" && argc == 4) {
        Engines(numbers(argv[2]), std::atof(argv[3]) / 1e3).serve();
    } else if (what == "read" && argc == 10) {
        Reader({numbers(argv[2]), argv[3], std::strtoul(argv[4], nullptr, 10), std::atol(argv[5]), std::atof(argv[6]) / 1e3,
                std::atof(argv[7]), std::atof(argv[8]), std::atof(argv[9])})
            .run();
    } else {
        std::fputs("wire engines PORTS INTERVAL_MS | wire read PORTS PATH COUNT TOKENS APART_MS WARM_S SECONDS LIMIT_S\n", stderr);
        return 2;
    }
}
