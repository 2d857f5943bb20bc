// Launches that were recorded (tests/emulator/replayed.py), run again in a process with a sanitizer: `replay FILE ORDER SEED
// BLOCKS`.
//
// Each buffer is an allocation of its own of just its size, so that what is read or written beside it is seen. The file
// is one launch after another, numbers in 64 bits: length and text of the kernel's name; grid and block (6); shared
// bytes; buffers, each its size and bytes; addresses that buffers hold, each as buffer and offset of where it is and of
// what it is of; arguments, each a buffer's number and the offset in it, or -1 and a value.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

extern "C" int emulator_launch(void (*call)(void**), const int64_t* sizes, int64_t shared_bytes, void** arguments,
                               int order, uint64_t seed, int64_t most_blocks, const char* kernel, char* message,
                               int64_t message_bytes);

namespace {

struct FreeBytes {
    void operator()(unsigned char* bytes) const { std::free(bytes); }
};
using Bytes = std::unique_ptr<unsigned char, FreeBytes>;

int64_t number(std::ifstream& file) {
    int64_t value = 0;
    file.read(reinterpret_cast<char*>(&value), sizeof(value));
    return value;
}

Bytes buffer(std::ifstream& file) {
    const int64_t size = number(file);
    void* place = nullptr;
    if (posix_memalign(&place, 64, size_t(size))) std::abort();
    file.read(static_cast<char*>(place), size);
    return Bytes(static_cast<unsigned char*>(place));
}

bool replay(std::ifstream& file, int order, uint64_t seed, int64_t most_blocks) {
    std::string kernel(size_t(number(file)), '\0');
    file.read(kernel.data(), int64_t(kernel.size()));
    int64_t sizes[6];
    for (int64_t& size : sizes) size = number(file);
    const int64_t shared_bytes = number(file);
    std::vector<Bytes> buffers(static_cast<size_t>(number(file)));
    for (Bytes& one : buffers) one = buffer(file);
    for (int64_t left = number(file); left > 0; --left) {
        unsigned char* at = buffers[size_t(number(file))].get();
        at += number(file);
        unsigned char* there = buffers[size_t(number(file))].get();
        there += number(file);
        std::memcpy(at, &there, sizeof(there));
    }
    std::vector<int64_t> values(static_cast<size_t>(number(file)));
    std::vector<void*> arguments;
    for (int64_t& value : values) {
        const int64_t of_buffer = number(file);
        value = number(file);
        if (of_buffer >= 0) value = reinterpret_cast<int64_t>(buffers[size_t(of_buffer)].get() + value);
        arguments.push_back(&value);
    }
    const auto call = reinterpret_cast<void (*)(void**)>(dlsym(RTLD_DEFAULT, (kernel + "__call").c_str()));
    if (!file || call == nullptr) {
        std::fprintf(stderr, "%s: not in this program, or the record is cut off\n", kernel.c_str());
        return false;
    }
    char message[1024];
    if (!emulator_launch(call, sizes, shared_bytes, arguments.data(), order, seed, most_blocks, kernel.c_str(), message,
                         sizeof(message))) {
        return true;
    }
    std::fprintf(stderr, "%s\n", message);
    return false;
}

}  // namespace

int main(int count, char** words) {
    if (count != 5) return 2;
    std::ifstream file(words[1], std::ios::binary);
    while (file.peek() != EOF) {
        if (!replay(file, std::atoi(words[2]), uint64_t(std::atoll(words[3])), std::atoll(words[4]))) return 1;
    }
    return 0;
}
