// A stand-in for libcuda where there is no GPU: it takes the same calls, checks that they come in an order that CUDA
// allows, and writes each into a log. It runs nothing.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>

namespace {
std::string log_text;
bool is_initialized = false;
void* current = nullptr;
// As of a kernel that has some static shared memory, which counts.
const int static_shared = 264;
int shared_allowed = (48 << 10) - static_shared;
int context_place, module_place, function_place;

void say(const std::string& line) { log_text += line + "\n"; }
enum { success = 0, invalid_value = 1, not_initialized = 3, invalid_context = 201, not_found = 500 };
}  // namespace

extern "C" {
const char* stand_in_log() { return log_text.c_str(); }
int cuInit(unsigned) { return is_initialized = true, success; }
int cuGetErrorName(int error, const char** name) {
    static const std::map<int, const char*> names = {{invalid_value, "CUDA_ERROR_INVALID_VALUE"},
                                                     {not_initialized, "CUDA_ERROR_NOT_INITIALIZED"},
                                                     {invalid_context, "CUDA_ERROR_INVALID_CONTEXT"},
                                                     {not_found, "CUDA_ERROR_NOT_FOUND"}};
    const auto found = names.find(error);
    *name = found == names.end() ? nullptr : found->second;
    return success;
}
int cuGetErrorString(int, const char** words) { return *words = "in words", success; }
int cuDeviceGet(int* device, int number) { return *device = number, is_initialized ? success : not_initialized; }
int cuDeviceGetName(char* name, int, int) { return std::strcpy(name, "stand-in"), success; }
int cuDeviceGetAttribute(int* value, int attribute, int) { return *value = attribute * 10, success; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &context_place, success; }
int cuCtxGetCurrent(void** context) { return *context = current, success; }
int cuCtxSetCurrent(void* context) {
    say("context");
    return current = context, success;
}
int cuModuleLoadData(void** module, const void* image) {
    if (!current) return invalid_context;
    if (std::memcmp(image, "cubin", 5)) return invalid_value;
    say("module");
    return *module = &module_place, success;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    if (module != &module_place || std::strcmp(name, "known_f32")) return not_found;
    say(std::string("function ") + name);
    return *function = &function_place, success;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    if (function != &function_place || attribute != 8) return invalid_value;
    say("shared " + std::to_string(value));
    return shared_allowed = value, success;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** arguments, void** extra) {
    if (!current) return invalid_context;
    if (function != &function_place || int(shared) > shared_allowed || extra) return invalid_value;
    say("launch " + std::to_string(gx) + "," + std::to_string(gy) + "," + std::to_string(gz) + " " +
        std::to_string(bx) + "," + std::to_string(by) + "," + std::to_string(bz) + " " + std::to_string(shared) + " " +
        std::to_string(reinterpret_cast<intptr_t>(stream)) + " " +
        std::to_string(*static_cast<int64_t*>(arguments[0])) + " " +
        std::to_string(*static_cast<float*>(arguments[1])));
    return success;
}
}
