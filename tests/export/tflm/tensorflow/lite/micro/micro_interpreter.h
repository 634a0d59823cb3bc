// A stub of TensorFlow Lite Micro for tests on a PC: another process runs the network. It reads
// inputs from standard output, and writes outputs to standard input.
#pragma once

#include <cstdint>
#include <cstdio>

#include "micro_mutable_op_resolver.h"
#include "network.h"

struct TfLiteTensor {
  union {
    int8_t *int8;
  } data;
};

namespace tflite {

struct Model;

class MicroInterpreter {
 public:
  template <typename Resolver>
  MicroInterpreter(const Model *, const Resolver &, uint8_t *arena, size_t n_bytes)
      : fits_(n_bytes >= HWNAS_INPUTS + HWNAS_OUTPUTS) {
    input_.data.int8 = reinterpret_cast<int8_t *>(arena);
    output_.data.int8 = input_.data.int8 + HWNAS_INPUTS;
  }
  TfLiteStatus AllocateTensors() { return fits_ ? kTfLiteOk : kTfLiteError; }
  TfLiteTensor *input(int) { return &input_; }
  TfLiteTensor *output(int) { return &output_; }
  TfLiteStatus Invoke() {
    std::fwrite(input_.data.int8, 1, HWNAS_INPUTS, stdout);
    std::fflush(stdout);
    const size_t n = std::fread(output_.data.int8, 1, HWNAS_OUTPUTS, stdin);
    return n == HWNAS_OUTPUTS ? kTfLiteOk : kTfLiteError;
  }

 private:
  bool fits_;
  TfLiteTensor input_, output_;
};

}  // namespace tflite
