// $title
//
// An example for TensorFlow Lite Micro. Written by hwnas. Link with model.c, network.c, TensorFlow
// Lite Micro$driver.
//
// In a C or C++ file that includes example.h and network.h:
//
//     hwnas_setup();                     // once, after the board's initialisation$setup
//     hwnas_resize(frame, 240, 320, pixels);  // of a camera; not needed for images of the right size
//     hwnas_run(pixels, values);         // HWNAS_OUTPUTS numbers

#include "example.h"

#include "model.h"
#include "network.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"

namespace {

// $sram KiB of activations ($sram_source), and 16 KiB for the interpreter and its kernels. If
// hwnas_setup() returns false, enlarge it; afterwards reduce it to arena_used_bytes().
constexpr size_t kArenaBytes = $arena_bytes;
alignas(16) uint8_t arena[kArenaBytes];
tflite::MicroInterpreter *interpreter = nullptr;

}  // namespace

bool hwnas_setup() {
  static tflite::MicroMutableOpResolver<$n_operators> resolver;
$operators
  static tflite::MicroInterpreter instance(tflite::GetModel(hwnas_model), resolver, arena,
                                           kArenaBytes);
  interpreter = &instance;
  return instance.AllocateTensors() == kTfLiteOk;
}

bool hwnas_run(const uint8_t *pixels, float *values) {
  hwnas_preprocess(pixels, interpreter->input(0)->data.int8);
  if (interpreter->Invoke() != kTfLiteOk) return false;
  hwnas_dequantise(interpreter->output(0)->data.int8, values);
  return true;
}
