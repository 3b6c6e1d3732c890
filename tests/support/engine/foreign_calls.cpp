// Calls functions of a library for another process, in answer to requests on stdin: emulated, it runs the operations that are
// compiled for another processor.
//
// A request, in numbers of 64 bits: the name's length and the name; how many arguments; of each its kind and an integer, a
// double, or a size and so many bytes; how many pointers, and of each the argument in which it lies, the offset there, the
// argument to which it points and the offset there. The answer: the result, then the bytes of each argument that has some.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

enum Kind : int64_t { kInteger = 0, kFloat = 1, kMemory = 2, kPointedTo = 3 };

// By AAPCS64, a function finds its integers (from the ninth on, on the stack) whether or not there are more, and its float beside them.
using Function = int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float);

void receive(void* to, size_t size) {
  if (size && std::fread(to, size, 1, stdin) != 1) std::exit(0);
}

int64_t number() {
  int64_t value;
  receive(&value, sizeof(value));
  return value;
}

}  // namespace

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  for (;;) {
    std::string name(static_cast<size_t>(number()), ' ');
    receive(name.data(), name.size());
    std::vector<std::vector<char>> memory(static_cast<size_t>(number()));
    std::vector<int64_t> integers;
    float fraction = 0;
    for (auto& bytes : memory) {
      const int64_t kind = number(), value = number();
      if (kind == kInteger) integers.push_back(value);
      if (kind == kFloat) {
        double wide;
        std::memcpy(&wide, &value, sizeof(wide));
        fraction = float(wide);
      }
      if (kind == kMemory || kind == kPointedTo) {
        bytes.resize(size_t(value));
        receive(bytes.data(), bytes.size());
      }
      if (kind == kMemory) integers.push_back(reinterpret_cast<int64_t>(bytes.data()));
    }
    for (int64_t left = number(); left > 0; --left) {
      const int64_t inside = number(), offset = number(), target = number();
      const char* address = memory[size_t(target)].data() + number();
      std::memcpy(memory[size_t(inside)].data() + offset, &address, sizeof(address));
    }
    integers.resize(11);
    const auto function = reinterpret_cast<Function>(dlsym(library, name.c_str()));
    const int64_t* i = integers.data();
    const int64_t result = function(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], fraction);
    std::fwrite(&result, sizeof(result), 1, stdout);
    for (const auto& bytes : memory) std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
  }
}
