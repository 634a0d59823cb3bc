/* $title

   Compares the C files with the numbers of the export. Written by hwnas. On a PC, in this folder:

       cc -std=c11 model.c network.c test.c -lm -o /tmp/hwnas_test && /tmp/hwnas_test

   On the board, compile with -DHWNAS_RUN and call hwnas_test(): it also runs the network. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model.h"
#include "network.h"
#ifdef HWNAS_RUN
#include "example.h"
#endif

#define IMAGES $n_images /* the first ones of ../images.npz */
#define FRAME_HEIGHT (HWNAS_HEIGHT + 7)
#define FRAME_WIDTH (2 * HWNAS_WIDTH + 4)
#define STEPS 2 /* that kernels of another library may differ, as steps of the output */

/* SHA-256 of $file and labels, as in ../proof.json. */
static const char model_digest[] = "$model_digest";
/* SHA-256 of the int8 inputs of all pixel values: channel by channel, 0 to 255. */
static const char table_digest[] = "$table_digest";

static const uint8_t pixels[IMAGES][HWNAS_INPUTS] = {
$pixels
};
/* The int8 input of each image, as run_tflite.py computes it. */
static const int8_t inputs[IMAGES][HWNAS_INPUTS] = {
$inputs
};
/* The int8 outputs of model.int8.tflite in LiteRT, and their values. */
static const int8_t outputs[IMAGES][HWNAS_OUTPUTS] = {
$int8_outputs
};
static const float expected[IMAGES][HWNAS_OUTPUTS] = {
$values
};
/* A resized frame, by Pillow. */
static const uint8_t resized[HWNAS_INPUTS] = {
$resized
};

static uint32_t state[8];
static uint8_t block[64];
static uint64_t length;

static uint32_t rotated(uint32_t x, int n) { return x >> n | x << (32 - n); }

/* SHA-256: FIPS 180-4, section 6.2. */
static void hash_block(void) {
  static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
  };
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; i++) {
    w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
           (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
  }
  for (int i = 16; i < 64; i++) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
           (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; i++) {
    const uint32_t e = s[4], a = s[0];
    const uint32_t first = s[7] + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                           ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
    const uint32_t second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) +
                            ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += first;
    s[0] = first + second;
  }
  for (int i = 0; i < 8; i++) state[i] += s[i];
}

static void hash_begin(void) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(state, start, sizeof state);
  length = 0;
}

static void hash_add(const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    block[length++ % 64] = ((const uint8_t *)bytes)[i];
    if (length % 64 == 0) hash_block();
  }
}

static int hash_is(const char *digest) {
  char hex[65];
  const uint64_t bits = 8 * length;
  hash_add("\200", 1);
  while (length % 64 != 56) hash_add("", 1);
  for (int i = 56; i >= 0; i -= 8) hash_add(&(uint8_t){(uint8_t)(bits >> i)}, 1);
  for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08lx", (unsigned long)state[i]);
  return !strcmp(hex, digest);
}

static int n_failed;

static void report(int holds, const char *what) {
  printf("%s %s\n", holds ? "ok    " : "FAILED", what);
  n_failed += !holds;
}

static void test_arrays(void) {
  hash_begin();
  hash_add(hwnas_model, hwnas_model_size);
  report(hash_is(model_digest), "model.c has the bytes of ../$file");
$test_labels}

static void test_preprocessing(void) {
  static uint8_t frame[FRAME_HEIGHT * FRAME_WIDTH * HWNAS_CHANNELS], image[HWNAS_INPUTS];
  static int8_t input[HWNAS_INPUTS], table[HWNAS_CHANNELS][256];
  int same = 1, close = 1;
  for (int i = 0; i < IMAGES; i++) {
    hwnas_preprocess(pixels[i], input);
    same = same && !memcmp(input, inputs[i], sizeof input);
  }
  report(same, "hwnas_preprocess gives the input of ../run_tflite.py for each image");
  for (int value = 0; value < 256; value++) {
    memset(image, value, sizeof image);
    hwnas_preprocess(image, input);
    for (int c = 0; c < HWNAS_CHANNELS; c++) table[c][value] = input[c];
  }
  hash_begin();
  hash_add(table, sizeof table);
  report(hash_is(table_digest), "hwnas_preprocess is right for all pixel values");
  for (size_t i = 0; i < sizeof frame; i++) frame[i] = (uint8_t)((uint64_t)i * i / 7 % 251);
  hwnas_resize(frame, FRAME_HEIGHT, FRAME_WIDTH, image);
  for (size_t i = 0; i < HWNAS_INPUTS; i++) {
    const int difference = image[i] - resized[i];
    close = close && difference <= 1 && difference >= -1;
  }
  report(close, "hwnas_resize differs by 1 of 255 at most from the training images");
}

static int all_near(const float *values, int i, float tolerance) {
  for (int j = 0; j < HWNAS_OUTPUTS; j++) {
    if (!(fabsf(values[j] - expected[i][j]) <= tolerance)) return 0;
  }
  return 1;
}

static void test_outputs(void) {
  float values[HWNAS_OUTPUTS];
  int same = 1;
  for (int i = 0; i < IMAGES; i++) {
    hwnas_dequantise(outputs[i], values);
    same = same && all_near(values, i, 1e-4f * ${output_scale}f);
$test_meaning  }
  report(same, "outputs of the network mean the values of the export");
#ifdef HWNAS_RUN
  same = hwnas_setup();
  report(same, "hwnas_setup");
  for (int i = 0; same && i < IMAGES; i++) {
    same = hwnas_run(pixels[i], values) && all_near(values, i, (STEPS + 0.1f) * ${output_scale}f);
  }
  report(same, "hwnas_run gives the outputs of LiteRT, up to 2 steps");
#endif
}

/* Print the result of each test; return the number of failed ones. */
int hwnas_test(void);

int hwnas_test(void) {
  n_failed = 0;
  test_arrays();
  test_preprocessing();
  test_outputs();
  return n_failed;
}

#ifndef HWNAS_RUN
int main(void) { return hwnas_test() != 0; }
#endif
