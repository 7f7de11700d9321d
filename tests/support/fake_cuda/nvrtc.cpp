// A compiler (libnvrtc.so) for the fake driver: its machine code is the text.

#include <nvrtc.h>

#include <cstring>
#include <string>

struct _nvrtcProgram {
  std::string text;
};

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  *major = 0;
  *minor = 1;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "fake"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* text, const char*, int,
                               const char* const*, const char* const*) {
  *program = new _nvrtcProgram{text};
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  delete *program;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int, const char* const*) {
  return program->text.find("#error") == std::string::npos ? NVRTC_SUCCESS
                                                           : NVRTC_ERROR_COMPILATION;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* bytes) {
  *bytes = program->text.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code) {
  std::memcpy(code, program->text.c_str(), program->text.size() + 1);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* bytes) {
  *bytes = 5;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* log) {
  std::memcpy(log, "fake", 5);
  return NVRTC_SUCCESS;
}

}  // extern "C"
