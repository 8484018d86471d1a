{
  # What `npm install` and prebuildify build. CMakeLists.txt is the same for developers: keep the two in step.
  "targets": [
    {
      "target_name": "node_rdma",
      "conditions": [
        ["OS!='linux'", { "type": "none" }],
        ["OS=='linux'", {
          "sources": ["<!@(node native/sources.mjs)"],
          "include_dirs": ["native", "<!(node -p \"require('node-addon-api').include_dir\")"],
          # The last one: in a worker that is being terminated an exception cannot be thrown, and that must not end the
          # process.
          "defines": [
            "NAPI_VERSION=8",
            "NODE_ADDON_API_CPP_EXCEPTIONS",
            "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS"
          ],
          "cflags!": ["-fno-exceptions"],
          "cflags_cc!": ["-fno-exceptions", "-fno-rtti"],
          "cflags_cc": ["-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-fno-plt"],
          # The C++ library is linked in, since the system's may be too old. The unwinder is not: Node brings it along, and
          # a static one needs a younger C library.
          "ldflags": [
            "-static-libstdc++",
            "-Wl,--version-script=<(module_root_dir)/native/exports.map"
          ],
          "libraries": ["-ldl"],
          "configurations": { "Release": { "cflags_cc": ["-O2"], "cflags_cc!": ["-O3"], "cflags!": ["-O3"] } }
        }]
      ]
    }
  ]
}
